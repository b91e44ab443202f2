// Costs by measuring: each different op on memory of its own, the ways to the device, and both beside each other.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "flow/costs/interference.hpp"
#include "flow/costs/op_memory.hpp"
#include "flow/costs/stopwatch.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "slip/costs.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip {
namespace {

// So many places for a small op, one after the other: a single one would stay in a cache that the real run has not.
constexpr std::uint64_t kMaxPlaces = 16;

constexpr const char *kKernelsBeside = "kernels beside loads take", *kLoadsBeside = "loads beside kernels take";

bool same_scalar(const Scalar& a, const Scalar& b) {
  return a.as<double>() == b.as<double>() && a.as<const void*>() == b.as<const void*>();
}

bool same_work(const Graph& graph, const GraphOp& a, const GraphOp& b) {
  return a.kernel == b.kernel && same_size(sample_of(graph, a, 0), sample_of(graph, b, 0)) &&
         std::equal(a.scalars.begin(), a.scalars.end(), b.scalars.begin(), b.scalars.end(), same_scalar);
}

std::vector<const GraphOp*> different_ops(const Graph& graph) {
  std::vector<const GraphOp*> result;
  for (const GraphOp& op : graph.ops()) {
    const auto same = [&](const GraphOp* other) { return same_work(graph, op, *other); };
    if (std::none_of(result.begin(), result.end(), same)) result.push_back(&op);
  }
  return result;
}

// One op at a time, in the memory of the largest.
class Bench {
 public:
  Bench(const Graph& graph, const Device& device, std::uint64_t bytes)
      : graph_(graph), device_(device), memory_(device.alloc(bytes, MemoryKind::kDevice, "op")), watch_(device) {}

  Picos time(const GraphOp& op) {
    const OpMemory values(graph_, op);
    prepare(values);
    return watch_.time(launcher(values));
  }

  // How much longer the op takes beside loads, and they beside it, each at least as long as alone.
  void interfere(const GraphOp& op, Picos op_time, const Stopwatch::Issue& load, Picos load_time, Costs& costs) {
    const OpMemory values(graph_, op);
    prepare(values);
    const Stopwatch::Issue launch = launcher(values);
    // The first time alone is known; when it has to be measured again, so has the time alone.
    const auto slowdown = [&](Stopwatch::Work main, const Stopwatch::Work& beside, const char* what) {
      bool first = true;
      const TimesBeside times = measure_beside([&] {
        if (!std::exchange(first, false)) main.time = watch_.time(main.issue);
        return TimesBeside{main.time, watch_.time_beside(main, beside)};
      });
      return plausible_slowdown(times, what);
    };
    costs.kernel_slowdown = slowdown({launch, op_time}, {load, load_time}, kKernelsBeside);
    costs.load_slowdown = slowdown({load, load_time}, {launch, op_time}, kLoadsBeside);
  }

 private:
  void prepare(const OpMemory& values) {
    places_ = std::clamp<std::uint64_t>(memory_.bytes() / values.bytes(), 1, kMaxPlaces);
    const Stream stream = device_.stream(StreamFlags::kNonBlocking);
    fill_with_numbers(device_, stream, memory_.slice(0, places_ * values.bytes()));
    for (std::uint64_t i = 0; i < places_; ++i) values.clear_integers(stream, place(values, i));
    stream.sync();
  }
  Range place(const OpMemory& values, std::uint64_t index) const {
    return memory_.slice(index % places_ * values.bytes(), values.bytes());
  }
  Stopwatch::Issue launcher(const OpMemory& values) const {
    return [this, &values](StreamRef stream, int index) {
      values.launch(stream, place(values, static_cast<std::uint64_t>(index)));
    };
  }

  const Graph& graph_;
  const Device& device_;
  const Buffer memory_;
  Stopwatch watch_;
  std::uint64_t places_ = 1;
};

// Ops of one size may differ in scalars, as the parts of a weight do: their mean, so that sums over a graph are right.
class Samples {
 public:
  void add(CostSample sample) {
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      if (!same_size(sample, samples_[i])) continue;
      times_[i].sum += sample.time;
      samples_[i].time = times_[i].sum / ++times_[i].count;
      return;
    }
    times_.push_back({sample.time, 1});
    samples_.push_back(std::move(sample));
  }
  std::vector<CostSample> take() { return std::move(samples_); }

 private:
  struct Times {
    Picos sum, count;
  };
  std::vector<CostSample> samples_;
  std::vector<Times> times_;
};

// Bursts give the ops' shares, the long run their sum and what stands in each other's way.
void apply(const Graph& graph, const SustainedTimes& sustained, Costs& costs) {
  Picos sum = 0;
  for (const GraphOp& op : graph.ops()) sum += costs.time_of(graph, op);
  const double factor = static_cast<double>(sustained.ops.alone) / static_cast<double>(std::max<Picos>(sum, 1));
  costs.kernel_slowdown = plausible_slowdown(sustained.ops, kKernelsBeside);
  costs.load_slowdown = plausible_slowdown(sustained.load, kLoadsBeside);
  for (CostSample& sample : costs.samples) {
    const double time = std::max(static_cast<double>(sample.time) * factor, 1.0);
    sample.time = static_cast<Picos>(time + 0.5);
    sample.beside = static_cast<Picos>(time * (1 + costs.kernel_slowdown) + 0.5);
  }
}

}  // namespace

Costs measure_costs(const Graph& graph, const Device& device, const LoadProbe& load, Here here) {
  if (load.piece_bytes == 0)
    throw Error(Code::kInvalidValue, "measure_costs: loads of 0 bytes; give LoadProbe::piece_bytes", here);
  const PrivateScope measuring;  // no part of the program's trace
  Costs costs;
  costs.device = device.info().name;
  const Buffer piece = device.alloc(load.piece_bytes, MemoryKind::kDevice, "piece", here);
  HostRing host(device, std::max(load.piece_bytes, std::min(HostRing::kEnough, 4 * load.piece_bytes)), here);
  const auto issue_load = [&](StreamRef stream, std::uint64_t bytes) {
    if (load.issue) load.issue(stream, piece.slice(0, bytes));
    else stream.copy(piece.slice(0, bytes), host.next(bytes), "load");
  };
  costs.load = measure_link(device, issue_load, load.piece_bytes, 1, here);
  costs.unload = measure_link(
      device,
      [&](StreamRef stream, std::uint64_t bytes) { stream.copy(host.next(bytes), piece.slice(0, bytes), "unload"); },
      load.piece_bytes, 1, here);

  const std::vector<const GraphOp*> ops = different_ops(graph);
  if (ops.empty()) return costs;
  std::uint64_t largest = 1;
  for (const GraphOp* op : ops) largest = std::max(largest, OpMemory(graph, *op).bytes());
  const Stopwatch::Issue one_load = [&](StreamRef stream, int) { issue_load(stream, load.piece_bytes); };
  const Picos load_time = costs.load.time_for(load.piece_bytes);
  {
    Bench bench(graph, device, largest);
    const GraphOp* dearest = nullptr;
    Picos longest = 0;
    Samples samples;
    for (const GraphOp* op : ops) {
      const Picos time = bench.time(*op);
      if (time > longest) longest = time, dearest = op;
      samples.add(sample_of(graph, *op, time));
    }
    costs.samples = samples.take();
    bench.interfere(*dearest, longest, one_load, load_time, costs);
  }
  const SustainedTimes sustained = sustained_times(
      graph, device, [&](StreamRef stream) { one_load(stream, 0); }, load_time);
  if (sustained.ops.alone > 0) apply(graph, sustained, costs);
  return costs;
}

// A way's latency and rate, fitted to the times of pieces of a few sizes.

namespace {

constexpr double kPicosPerSecond = 1e12;

struct Timed {
  double bytes, time;
};

// The line time = latency + bytes x slope whose relative errors are least: else the largest piece alone would decide.
Link fit(const std::vector<Timed>& pieces) {
  double weights = 0, bytes = 0, times = 0, squares = 0, products = 0;
  for (const Timed& piece : pieces) {
    const double weight = 1 / (piece.time * piece.time);
    weights += weight;
    bytes += weight * piece.bytes;
    times += weight * piece.time;
    squares += weight * piece.bytes * piece.bytes;
    products += weight * piece.bytes * piece.time;
  }
  const double spread = weights * squares - bytes * bytes;
  double slope = spread > 0 ? (weights * products - bytes * times) / spread : 0;
  double latency = (times - slope * bytes) / weights;
  if (slope <= 0 || latency < 0) {  // noise, or a single size
    const Timed& largest = *std::max_element(pieces.begin(), pieces.end(),
                                             [](const Timed& a, const Timed& b) { return a.bytes < b.bytes; });
    slope = largest.time / largest.bytes;
    latency = 0;
  }
  return {kPicosPerSecond / slope, static_cast<Picos>(latency + 0.5)};
}

}  // namespace

Link measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                  std::uint64_t piece_bytes, std::uint64_t unit_bytes, Here here) {
  if (unit_bytes == 0 || piece_bytes < unit_bytes || !issue)
    throw Error(Code::kInvalidValue,
                fmt::format("measure_link: pieces of {} bytes in units of {}{}; give at least one unit and how it is "
                            "moved",
                            piece_bytes, unit_bytes, issue ? "" : " and no function"),
                here);
  Stopwatch watch(device);
  std::vector<Timed> pieces;
  for (const std::uint64_t parts : {1, 4, 16, 1024}) {  // the last for the latency, which large ones do not show
    const std::uint64_t bytes = piece_bytes / parts / unit_bytes * unit_bytes;
    if (bytes == 0) break;
    const Picos time = watch.time([&](StreamRef stream, int) { issue(stream, bytes); });
    pieces.push_back({static_cast<double>(bytes), static_cast<double>(time)});
  }
  return fit(pieces);
}

// How the runner loads on a device, to be measured: what a plan is made from is what will happen.

namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

// Reads the weights of a graph one after the other, round and round, so that the processor's cache does not answer.
struct FileProbe {
  std::shared_ptr<const TensorFiles> files;
  std::vector<const TensorInfo*> tensors;
  BlockReader reader;
  std::size_t turn = 0;
  std::uint64_t offset = 0;  // in the tensor whose turn it is

  FileProbe(std::shared_ptr<const TensorFiles> from, const Graph& graph, const ReaderOptions& options, Here here)
      : files(std::move(from)), reader(options, here) {
    for (const GraphValue& value : graph.values()) {
      if (value.role != ValueRole::kWeight) continue;
      const TensorInfo& one = files->at(value.name, here);
      if (one.bytes > 0) tensors.push_back(&one);
    }
  }
  std::uint64_t piece_bytes() const {
    std::uint64_t largest = 0;
    for (const TensorInfo* one : tensors) largest = std::max(largest, one->bytes);
    return std::min(kPieceBytes, largest);
  }
  void read(std::byte* into, std::uint64_t bytes) {
    while (bytes > 0) {
      const TensorInfo& tensor = *tensors[turn];
      const std::uint64_t part = std::min(bytes, tensor.bytes - offset);
      reader.read(file_of(*files, tensor, {}), tensor.offset + offset, part, {into, part});
      into += part, bytes -= part, offset += part;
      if (offset == tensor.bytes) turn = (turn + 1) % tensors.size(), offset = 0;
    }
  }
};

void issue_read(const std::shared_ptr<FileProbe>& probe, StreamRef stream, Range to) {
  stream.host([probe, into = address(to), bytes = to.bytes] { probe->read(into, bytes); },
              {.reads = {}, .writes = {to}, .scalars = {}, .name = "read"});
}

}  // namespace

Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here) {
  source.check(graph, here);
  const PrivateScope measuring;  // no part of the program's trace
  const std::shared_ptr<const TensorFiles> files = source.files_;
  if (!files) return measure_costs(graph, device, LoadProbe{}, here);
  LoadProbe load;
  const bool straight = !device.info().name.starts_with("cuda");  // a read goes right to the device's memory
  ReaderOptions options;
  options.threads = straight ? 1 : 4;
  options.between_loops = straight;
  if (straight) {
    const auto cached = std::make_shared<FileProbe>(files, graph, options, here);
    if (!cached->tensors.empty()) {
      load.piece_bytes = cached->piece_bytes();
      load.issue = [cached](StreamRef stream, Range to) { issue_read(cached, stream, to); };
    }
  }
  Costs costs = measure_costs(graph, device, load, here);
  options.cache = ReaderOptions::Cache::kNever;
  const auto cold = std::make_shared<FileProbe>(files, graph, options, here);
  if (cold->tensors.empty()) return costs;
  const Buffer landing = device.alloc(cold->piece_bytes(), MemoryKind::kPinned, "read", here);
  costs.read = measure_link(
      device, [&](StreamRef stream, std::uint64_t bytes) { issue_read(cold, stream, landing.slice(0, bytes)); },
      cold->piece_bytes(), 1, here);
  return costs;
}

}  // namespace slip
