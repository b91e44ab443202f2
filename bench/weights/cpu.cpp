#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "case.hpp"
#include "model/compressed_files.hpp"
#include "model/folder.hpp"
#include "store/reader.hpp"
#include "support/process.hpp"

namespace slip::bench {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// A model on disk that is removed with this object.
class ModelFolder {
 public:
  explicit ModelFolder(const model::StackOptions& options)
      : path(fmt::format("{}/build/bench/model-{}", SLIP_SOURCE_DIR, ::getpid())) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    const Graph graph = model::stack_graph(options);
    model::write_model(graph, path, [&](Value weight, std::uint64_t offset, std::span<std::byte> into) {
      model::fill_stack_weight(graph, options, weight, offset, into);
    });
  }
  ~ModelFolder() { std::filesystem::remove_all(path); }
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  // Removes the file from the page cache, or reads it into the cache.
  void cool() const { cool(path); }
  static void cool(const std::string& folder) {
    each_file(folder,
              [](int file) { static_cast<void>(::fsync(file), ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)); });
  }
  void warm() const {
    each_file(path, [](int file) {
      std::vector<char> block(kMiB);
      while (::read(file, block.data(), block.size()) > 0) {}
    });
  }
  const std::string path;

 private:
  template <class Act>
  static void each_file(const std::string& folder, const Act& act) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file < 0) throw std::runtime_error("cannot open " + entry.path().string());
      act(file);
      ::close(file);
    }
  }
};

model::StackOptions stack_of(std::uint64_t blocks, std::uint64_t tokens) {
  model::StackOptions options;
  options.blocks = blocks;
  options.hidden = 1024;
  options.intermediate = 2816;
  options.tokens = tokens;
  return options;
}

// Half of the weights streamed from the page cache, alternating with all weights resident.
struct Warm {
  std::vector<double> step, resident;  // ns
  Picos predicted = 0;
  double compute_to_copy = 0;  // compute on all cores to one core's copy of all weights
  std::uint64_t tokens = 0;
  bool equal = false;
};

Warm measure_warm(Context& context) {
  constexpr std::uint64_t kBlocks = 8, kTrial = 32;
  const ModelFolder model(stack_of(kBlocks, kTrial));
  model.warm();
  const WeightSource source = WeightSource::files(model.path);
  Warm result;
  // As many tokens as make compute four times the copy.
  const auto ratio = [](const Costs& costs, const Graph& graph) {
    Picos compute = 0;
    for (const GraphOp& op : graph.ops()) compute += costs.time_of(graph, op);
    return static_cast<double>(compute) / static_cast<double>(costs.load.time_for(graph.bytes_of(ValueRole::kWeight)));
  };
  Graph graph = model::stack_graph(stack_of(kBlocks, kTrial));
  Costs costs = measure_costs(graph, Device::open("cpu"), source);
  result.tokens = kTrial;
  for (int turn = 0; turn < 2; ++turn) {  // time is not quite proportional to tokens
    const double tokens = static_cast<double>(result.tokens) * 4 / ratio(costs, graph);
    result.tokens = static_cast<std::uint64_t>(std::clamp(std::round(tokens), 17.0, 512.0));
    graph = model::stack_graph(stack_of(kBlocks, result.tokens));
    costs = measure_costs(graph, Device::open("cpu"), source);
  }
  result.compute_to_copy = ratio(costs, graph);
  WeightsOptions half;
  half.budget = graph.bytes_of(ValueRole::kWeight) / 2;
  const WeightsPlan plan = plan_weights(graph, costs, half);
  result.predicted = predict_weights(plan, graph, costs).step;
  RunningPlan resident("cpu", graph, plan_weights(graph, costs), source);
  RunningPlan streamed("cpu", graph, plan, source);
  const int steps = context.quick() ? 2 : 6;
  for (int round = 0; round < context.repeat(); ++round) {
    model.warm();  // the system may have evicted parts of the file from the page cache
    result.resident.push_back(resident.step_ns(steps));
    result.step.push_back(streamed.step_ns(steps));
  }
  result.equal = resident.output() == streamed.output();
  return result;
}

// From disk, with little memory.
struct Cold {
  std::vector<double> rate, raw;  // bytes/s
  std::vector<double> rss;        // bytes
};
constexpr std::uint64_t kAllowed = 256 * kMiB;
constexpr std::uint64_t kColdBudget = 176 * kMiB;  // without the program itself, its reader and its inputs

double raw_read_rate(const std::string& folder) {
  store::ReaderOptions options;
  options.cache = store::ReaderOptions::Cache::kNever;
  store::BlockReader reader(options);
  constexpr std::size_t kPiece = 32 * kMiB;
  Buffer memory = Device::open("cpu").alloc(kPiece, MemoryKind::kPinned);  // aligned: nothing is copied again
  std::byte* const into = memory.host_write<std::byte>().begin();
  std::uint64_t bytes = 0;
  const Timer timer;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    const store::File file = store::File::open(entry.path().string());
    for (std::uint64_t at = 0; at < file.size(); at += kPiece) {
      const std::uint64_t piece = std::min<std::uint64_t>(kPiece, file.size() - at);
      reader.read(file, at, piece, {into, kPiece});
      bytes += piece;
    }
  }
  return static_cast<double>(bytes) / timer.elapsed_ns() * 1e9;
}

nlohmann::json run_cold_process(const std::string& folder) {
  Child child(
      {std::filesystem::read_symlink("/proc/self/exe").string(), "--cold", folder, std::to_string(kColdBudget)});
  const std::string text = child.read_all();
  const int status = child.status();
  if (status != 0 || text.empty()) throw std::runtime_error(fmt::format("--cold '{}': status {}", folder, status));
  return nlohmann::json::parse(text);
}

Cold measure_cold(Context& context) {
  const ModelFolder model(stack_of(16, 1));  // 784 MiB
  Cold result;
  for (int round = 0; round < std::min(context.repeat(), 5); ++round) {
    model.cool();
    result.raw.push_back(raw_read_rate(model.path));
    const nlohmann::json said = run_cold_process(model.path);
    result.rate.push_back(said.at("bytes_per_second").get<double>());
    result.rss.push_back(said.at("peak_rss").get<double>());
  }
  return result;
}

// The same from a compressed folder. The rate of reads is that of the folder with the weights as they are.
Cold measure_cold_compressed(Context& context) {
  model::StackOptions options = stack_of(32, 1);  // 784 MiB
  options.type = DataType::kBF16;
  const ModelFolder model(options);
  const std::string small = model.path + "-small";
  std::filesystem::remove_all(small);
  model::compress_files(model.path, small, {}, {});
  Cold result;
  for (int round = 0; round < std::min(context.repeat(), 5); ++round) {
    model.cool();
    result.raw.push_back(raw_read_rate(model.path));
    ModelFolder::cool(small);
    const nlohmann::json said = run_cold_process(small);
    result.rate.push_back(said.at("bytes_per_second").get<double>());
    result.rss.push_back(said.at("peak_rss").get<double>());
  }
  std::filesystem::remove_all(small);
  return result;
}

Series series(const char* name, std::vector<double> samples) { return {name, std::move(samples), {}}; }

}  // namespace

int run_cold(const std::string& folder, std::uint64_t budget) {
  const Graph graph = read_graph(folder + "/graph.json");
  const WeightSource source = WeightSource::files(folder);
  Costs costs = model_costs(graph, "sim:laptop");  // load-bound with any costs; measuring them would take more memory
  costs.read = costs.load = {4e9, 0};
  costs.device = "cpu";  // makes the planner leave room for direct reads
  WeightsOptions options;
  options.budget = budget;
  options.host_memory = 0;
  options.compressed = source.compressed_bytes(graph);
  costs.decode = {20e9, 0};
  const WeightsPlan plan = plan_weights(graph, costs, options);
  RunningPlan running("cpu", graph, plan, source);
  const double step = running.step_ns(8);
  std::ifstream status("/proc/self/status");
  std::string line;
  std::uint64_t peak_kib = 0;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) peak_kib = std::stoull(line.substr(6));
  }
  fmt::print("{{\"bytes_per_second\": {}, \"peak_rss\": {}}}\n", static_cast<double>(plan.streamed_bytes) / step * 1e9,
             peak_kib * 1024);
  return 0;
}

void add_cpu_bars(Harness& harness) {
  const auto warm = std::make_shared<std::optional<Warm>>();
  const auto get_warm = [warm](Context& context) -> const Warm& {
    if (!*warm) *warm = measure_warm(context);
    if (!(*warm)->equal) throw std::runtime_error("the outputs are not those of the resident run");
    return **warm;
  };
  Bar ratio;
  ratio.area = "weights", ratio.name = "cpu_half_of_the_weights_vs_resident", ratio.unit = Unit::kPercent;
  ratio.limit = 110;
  ratio.record = [get_warm](Context& context) {
    const Warm& one = get_warm(context);
    std::vector<double> ratios;
    for (std::size_t i = 0; i < one.step.size(); ++i) ratios.push_back(100 * one.step[i] / one.resident[i]);
    context.note(fmt::format("{} tokens: compute {:.2f} times one core's copy; {:.1f} ms a step, resident {:.1f} ms",
                             one.tokens, one.compute_to_copy, median(one.step) / 1e6, median(one.resident) / 1e6));
    return Recorded{series("ours", ratios), {series("step_ns", one.step), series("resident_ns", one.resident)}};
  };
  harness.add(std::move(ratio));

  Bar error;
  error.area = "weights", error.name = "cpu_prediction_error", error.unit = Unit::kPercent;
  error.limit = 5;
  error.record = [get_warm](Context& context) {
    const Warm& one = get_warm(context);
    const double predicted = static_cast<double>(one.predicted) / 1000;
    context.note(fmt::format("predicted {:.1f} ms, measured {:.1f} ms", predicted / 1e6, median(one.step) / 1e6));
    return Recorded{series("ours", {100 * std::abs(predicted / median(one.step) - 1)}), {}};
  };
  harness.add(std::move(error));

  const auto cold = std::make_shared<std::optional<Cold>>();
  const auto get_cold = [cold](Context& context) -> const Cold& {
    if (!*cold) *cold = measure_cold(context);
    return **cold;
  };
  Bar rate;
  rate.area = "weights", rate.name = "cpu_cold_3x_memory_rate_vs_reads", rate.unit = Unit::kBytesPerSecond;
  rate.better = Better::kHigher;
  rate.target = 0.9;
  rate.record = [get_cold](Context& context) {
    const Cold& one = get_cold(context);
    return Recorded{series("ours", one.rate), {series("reads", one.raw)}};
  };
  harness.add(std::move(rate));

  Bar compressed;
  compressed.area = "weights", compressed.name = "cpu_cold_compressed_rate_vs_reads";
  compressed.unit = Unit::kBytesPerSecond;
  compressed.better = Better::kHigher;
  compressed.target = 1.3;
  compressed.record = [](Context& context) {
    const Cold one = measure_cold_compressed(context);
    context.note(fmt::format("peak memory of the process {:.0f} MB", median(one.rss) / 1e6));
    return Recorded{series("ours", one.rate), {series("reads", one.raw)}};
  };
  harness.add(std::move(compressed));

  Bar memory;
  memory.area = "weights", memory.name = "cpu_cold_3x_memory_peak_rss", memory.unit = Unit::kBytes;
  memory.limit = static_cast<double>(kAllowed) * 1.05;
  memory.record = [get_cold](Context& context) { return Recorded{series("ours", get_cold(context).rss), {}}; };
  harness.add(std::move(memory));
}

}  // namespace slip::bench
