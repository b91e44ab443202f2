#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "case.hpp"
#include "raw_link.hpp"

namespace slip::bench {

model::StackOptions gpu_stack(std::uint64_t tokens, bool uneven) {
  model::StackOptions options;
  options.blocks = uneven ? 8 : 32;
  options.hidden = 4096;
  options.intermediate = 11008;
  options.tokens = tokens;
  options.type = DataType::kBF16;
  options.uneven = uneven;
  return options;
}

namespace {

struct Case {
  std::string name;
  std::uint64_t tokens = 1;
  bool uneven = false;
  double budget_share = 0;  // of gpu_options()
  int steps = 3, rounds = 5;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"t1", 1, false, 0, 3, 3},         {"t512", 512, false, 0, 3, 3},     {"t16384", 16384, false, 0, 3, 3},
      {"t65536", 65536, false, 0, 2, 3}, {"t1_25", 1, false, 0.25, 3, 3},   {"t1_50", 1, false, 0.5, 3, 3},
      {"t1_75", 1, false, 0.75, 3, 3},   {"uneven_t1", 1, true, 0.5, 3, 3}, {"uneven_t8192", 8192, true, 0.5, 3, 3},
  };
  return all;
}
constexpr std::uint64_t kHeldOut = 512;  // number of tokens that is not in the measured profile

struct Measured {
  std::vector<double> step, resident, link;  // ns, ns, bytes/s: by round, in turn
  WeightsPlan plan;
  Picos predicted = 0;
  std::uint64_t peak = 0, weights = 0;
  bool equal = false;
};

// Everything is measured once, when the first bar needs it.
class Grid {
 public:
  explicit Grid(std::string costs_file) : costs_file_(std::move(costs_file)) {}

  std::string why_not() const { return why_no_gpu_cases(costs_file_); }
  const Measured& at(const std::string& name) {
    if (done_.empty()) measure();
    return done_.at(name);
  }
  const std::map<std::string, Measured>& all() {
    if (done_.empty()) measure();
    return done_;
  }

 private:
  void measure() {
    const Costs costs = read_costs(costs_file_);
    const Device host = Device::open(kGpu);
    for (const bool uneven : {false, true}) {
      const StackWeights weights(host, gpu_stack(1, uneven));
      for (const Case& one : cases()) {
        if (one.uneven == uneven) done_[one.name] = measure(one, weights, costs);
      }
    }
  }

  static Measured measure(const Case& one, const StackWeights& weights, const Costs& costs) {
    const Graph graph = model::stack_graph(gpu_stack(one.tokens, one.uneven));
    Measured result;
    result.weights = graph.bytes_of(ValueRole::kWeight);
    result.plan = plan_weights(graph, costs, gpu_options(graph, one.budget_share));
    result.predicted = predict_weights(result.plan, graph, costs).step;
    RunningPlan resident(kGpu, graph, plan_weights(graph, costs), weights.source());
    RunningPlan streamed(kGpu, graph, result.plan, weights.source());
    for (int round = 0; round < one.rounds; ++round) {
      result.link.push_back(
          raw_upload_rate(weights.memory().native(), weights.memory().bytes(), kLinkPiece, 8ULL << 30));
      result.resident.push_back(resident.step_ns(one.steps));
      result.step.push_back(streamed.step_ns(one.steps));
    }
    result.peak = streamed.peak_bytes();
    result.equal = resident.output() == streamed.output();
    return result;
  }

  std::string costs_file_;
  std::map<std::string, Measured> done_;
};

// The results of the Python peers, which torch_peers.py has measured and written: seconds per step by number of tokens.
class TorchPeers {
 public:
  explicit TorchPeers(const std::string& path) {
    std::ifstream file(path);
    if (file) json_ = nlohmann::json::parse(file, nullptr, false);
  }
  std::optional<std::vector<double>> samples_ns(const std::string& peer, std::uint64_t tokens) const {
    const std::string key = std::to_string(tokens);
    if (!json_.is_object() || !json_.contains(peer) || !json_[peer].contains(key)) return std::nullopt;
    std::vector<double> result = json_[peer][key].get<std::vector<double>>();
    for (double& seconds : result) seconds *= 1e9;
    return result;
  }

 private:
  nlohmann::json json_;
};

Bar named(std::string name, Unit unit) {
  Bar bar;
  bar.name = std::move(name);
  bar.unit = unit;
  return bar;
}

void require_equal(const Measured& measured) {
  if (!measured.equal) throw std::runtime_error("the outputs are not those of the resident run");
}

void add_link_bars(Harness& harness, const std::shared_ptr<Grid>& grid) {
  for (const char* name : {"t1", "t512"}) {
    Bar bar = named(fmt::format("h200_{}_rate_vs_raw_copies", name), Unit::kBytesPerSecond);
    bar.better = Better::kHigher;
    bar.target = 0.98;
    add_gpu_bar<Grid>(harness, grid, std::move(bar), [name](Context& context, Grid& all) {
      const Measured& measured = all.at(name);
      require_equal(measured);
      std::vector<double> rates;
      for (const double ns : measured.step)
        rates.push_back(static_cast<double>(measured.plan.streamed_bytes) / ns * 1e9);
      context.note(fmt::format("{:.1f} ms a step, resident {:.1f} ms, peak {} MB of device memory",
                               median(measured.step) / 1e6, median(measured.resident) / 1e6, measured.peak / 1000000));
      return Recorded{series("ours", rates), {series("raw", measured.link)}};
    });
  }
}

void add_torch_bars(Harness& harness, const std::shared_ptr<Grid>& grid, const std::shared_ptr<TorchPeers>& torch) {
  struct Row {
    const char* peer;
    const char* name;
    std::uint64_t tokens;
    double target;
  };
  for (const Row row : {Row{"accelerate", "t1", 1, 8}, Row{"accelerate", "t512", 512, 8},
                        Row{"two_slots", "t1", 1, 0.99}, Row{"two_slots", "t16384", 16384, 0.98}}) {
    Bar bar = named(fmt::format("h200_{}_vs_{}", row.name, row.peer), Unit::kNanoseconds);
    bar.target = row.target;
    add_gpu_bar<Grid>(harness, grid, std::move(bar), [row, torch](Context&, Grid& all) {
      const auto samples = torch->samples_ns(row.peer, row.tokens);
      if (!samples) return Recorded{{"ours", {}, "no PyTorch, transformers or accelerate here"}, {}};
      return Recorded{series("ours", all.at(row.name).step), {series(row.peer, *samples)}};
    });
  }
}

void add_resident_bars(Harness& harness, const std::shared_ptr<Grid>& grid) {
  for (const auto& [name, max_ratio] : {std::pair{"t16384", 1.03}, std::pair{"t65536", 1.01}}) {
    Bar bar = named(fmt::format("h200_{}_two_blocks_vs_resident", name), Unit::kPercent);
    bar.limit = 100 * max_ratio;
    add_gpu_bar<Grid>(harness, grid, std::move(bar), [name = name](Context& context, Grid& all) {
      const Measured& measured = all.at(name);
      require_equal(measured);
      std::vector<double> ratios;
      for (std::size_t i = 0; i < measured.step.size(); ++i)
        ratios.push_back(100 * measured.step[i] / measured.resident[i]);
      context.note(fmt::format("{:.1f} ms a step, resident {:.1f} ms", median(measured.step) / 1e6,
                               median(measured.resident) / 1e6));
      return Recorded{series("ours", ratios),
                      {series("step_ns", measured.step), series("resident_ns", measured.resident)}};
    });
  }
}

// Compared with the lower bound of the link: all weights but those that the budget holds besides ring and activations.
void add_budget_bars(Harness& harness, const std::shared_ptr<Grid>& grid) {
  for (const char* name : {"t1_25", "t1_50", "t1_75"}) {
    Bar bar = named(fmt::format("h200_{}_percent_budget_vs_bound", name), Unit::kPercent);
    bar.limit = 104;
    add_gpu_bar<Grid>(harness, grid, std::move(bar), [name](Context& context, Grid& all) {
      const Measured& measured = all.at(name);
      require_equal(measured);
      const WeightsPlan& plan = measured.plan;
      const double carried =
          static_cast<double>(measured.weights - *plan.budget + plan.activation_bytes + plan.ring_bytes);
      std::vector<double> ratios;
      for (std::size_t i = 0; i < measured.step.size(); ++i)
        ratios.push_back(100 * measured.step[i] / (carried / measured.link[i] * 1e9));
      context.note(fmt::format("{:.1f} ms a step; ring {:.2f} % of the weights (at most 2)",
                               median(measured.step) / 1e6,
                               100.0 * static_cast<double>(plan.ring_bytes) / static_cast<double>(measured.weights)));
      return Recorded{series("ours", ratios), {series("step_ns", measured.step), series("link", measured.link)}};
    });
  }
  for (const char* name : {"uneven_t1", "uneven_t8192"}) {
    Bar bar = named(fmt::format("h200_{}_vs_bound", name), Unit::kPercent);
    bar.limit = 103;
    add_gpu_bar<Grid>(harness, grid, std::move(bar), [name](Context& context, Grid& all) {
      const Measured& measured = all.at(name);
      require_equal(measured);
      std::vector<double> ratios;
      for (std::size_t i = 0; i < measured.step.size(); ++i) {
        const double loads = static_cast<double>(measured.plan.streamed_bytes) / measured.link[i] * 1e9;
        ratios.push_back(100 * measured.step[i] / std::max(loads, measured.resident[i]));
      }
      context.note(fmt::format("{:.1f} ms a step, resident {:.1f} ms", median(measured.step) / 1e6,
                               median(measured.resident) / 1e6));
      return Recorded{series("ours", ratios),
                      {series("step_ns", measured.step), series("resident_ns", measured.resident)}};
    });
  }
}

void add_prediction_bars(Harness& harness, const std::shared_ptr<Grid>& grid) {
  Bar error = named("h200_prediction_error", Unit::kPercent);
  error.limit = 5;
  add_gpu_bar<Grid>(harness, grid, std::move(error), [](Context& context, Grid& all) {
    std::vector<Series> each;
    double worst = 0;
    for (const auto& [name, measured] : all.all()) {
      const double predicted = static_cast<double>(measured.predicted) / 1000;
      const double off = 100 * std::abs(predicted / median(measured.step) - 1);
      worst = std::max(worst, off);
      each.push_back(series(name.c_str(), {off}));
      context.note(fmt::format("{}: predicted {:.1f} ms, measured {:.1f} ms, {:.1f} % off{}", name, predicted / 1e6,
                               median(measured.step) / 1e6, off, name == "t512" ? " (tokens not profiled)" : ""));
    }
    return Recorded{series("ours", {worst}), std::move(each)};
  });
  Bar memory = named("h200_memory_prediction_error", Unit::kPercent);
  memory.limit = 2;
  add_gpu_bar<Grid>(harness, grid, std::move(memory), [](Context&, Grid& all) {
    double worst = 0;
    for (const auto& [name, measured] : all.all()) {
      const auto planned = static_cast<double>(measured.plan.device_bytes());
      worst = std::max(worst, 100 * std::abs(static_cast<double>(measured.peak) / planned - 1));
    }
    return Recorded{series("ours", {worst}), {}};
  });
}

}  // namespace

int profile_gpu(const std::string& costs_file) {
  if (!has_gpu()) {
    fmt::print("profile: no GPU\n");
    return 0;
  }
  const Device device = Device::open(kGpu);
  std::optional<Costs> costs;
  for (const Case& one : cases()) {
    if (one.tokens == kHeldOut || one.budget_share == 0.25 || one.budget_share == 0.75) continue;
    model::StackOptions options = gpu_stack(one.tokens, one.uneven);
    options.blocks = 2;  // the ops of all blocks, or of both kinds of blocks
    Costs more = measure_costs(model::stack_graph(options), device);
    const double slowdown = more.kernel_slowdown;
    if (!costs) {
      costs = std::move(more);
    } else {
      costs->samples.insert(costs->samples.end(), more.samples.begin(), more.samples.end());
    }
    fmt::print("profile: {} tokens{}: kernels {:.1f} % slower beside loads\n", one.tokens, one.uneven ? ", uneven" : "",
               100 * slowdown);
  }
  costs->decode = measure_decode(device);
  fmt::print("profile: decodes {:.0f} GB/s\n", costs->decode.bytes_per_second / 1e9);
  write_costs(*costs, costs_file);
  return 0;
}

void add_gpu_bars(Harness& harness, std::string costs_file, std::string torch_file) {
  const auto grid = std::make_shared<Grid>(std::move(costs_file));
  const auto torch = std::make_shared<TorchPeers>(torch_file);
  add_link_bars(harness, grid);
  add_torch_bars(harness, grid, torch);
  add_resident_bars(harness, grid);
  add_budget_bars(harness, grid);
  add_prediction_bars(harness, grid);
}

}  // namespace slip::bench
