// measure_costs, measure_link and measure_decode. They measure each different op of a graph by itself, the links
// between host and device, how much concurrent ops and loads slow each other, and how fast a device decodes compressed
// weights.
#include <algorithm>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "base/fail.hpp"
#include "flow/costs/measuring.hpp"
#include "flow/weights/loader.hpp"
#include "flow/weights/weight_groups.hpp"
#include "model/codec/kernel.hpp"
#include "model/compressed_files.hpp"
#include "model/safetensors.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "slip/costs.hpp"
#include "slip/runner.hpp"
#include "store/reader.hpp"

namespace slip {

using namespace flow;
namespace {

// A small op is measured on up to this many copies of its values in turn. A single copy would stay in a cache, but in a
// real run the values come from memory.
constexpr std::uint64_t kMaxCopies = 16;

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

// Measures one op at a time, in memory that is large enough for each of them.
class OpBench {
 public:
  OpBench(const Graph& graph, const Device& device, std::uint64_t bytes)
      : graph_(graph), device_(device), memory_(device.alloc(bytes, MemoryKind::kDevice, "op")), watch_(device) {}

  Picos time(const GraphOp& op) {
    const OpMemory values(graph_, op);
    prepare(values);
    return watch_.time(launcher(values));
  }

  // Measures the slowdown of the op while loads run, and of loads while the op runs.
  void interfere(const GraphOp& op, Picos op_time, const Stopwatch::Issue& load, Picos load_time, Costs& costs) {
    const OpMemory values(graph_, op);
    prepare(values);
    const Stopwatch::Issue launch = launcher(values);
    // The time alone is known for the first measurement; each repeat measures it again.
    const auto slowdown = [&](Stopwatch::Work main, const Stopwatch::Work& beside, const char* what) {
      bool first = true;
      const InterferenceTimes times = measure_interference([&] {
        if (!std::exchange(first, false)) main.time = watch_.time(main.issue);
        return InterferenceTimes{main.time, watch_.time_beside(main, beside)};
      });
      return plausible_slowdown(times, what);
    };
    costs.kernel_slowdown = slowdown({launch, op_time}, {load, load_time}, kKernelsBeside);
    costs.load_slowdown = slowdown({load, load_time}, {launch, op_time}, kLoadsBeside);
  }

 private:
  void prepare(const OpMemory& values) {
    copies_ = std::clamp<std::uint64_t>(memory_.bytes() / values.bytes(), 1, kMaxCopies);
    const Stream stream = device_.stream(StreamFlags::kNonBlocking);
    fill_with_numbers(device_, stream, memory_.slice(0, copies_ * values.bytes()));
    for (std::uint64_t i = 0; i < copies_; ++i) values.clear_integers(stream, copy_of(values, i));
    stream.sync();
  }
  Range copy_of(const OpMemory& values, std::uint64_t index) const {
    return memory_.slice(index % copies_ * values.bytes(), values.bytes());
  }
  Stopwatch::Issue launcher(const OpMemory& values) const {
    return [this, &values](StreamRef stream, int index) {
      values.launch(stream, copy_of(values, static_cast<std::uint64_t>(index)));
    };
  }

  const Graph& graph_;
  const Device& device_;
  const Buffer memory_;
  Stopwatch watch_;
  std::uint64_t copies_ = 1;
};

// Samples by size. Ops of one size may differ in scalars, as the parts of one weight do. Their sample has the mean time
// of the different ops, so that a sum over all ops of the graph is about right.
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

// Scales the samples so that their sum over the graph is the time of the sustained run. Their ratios stay as measured
// in short bursts. The slowdowns are those of the sustained run.
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

struct TimedTransfer {
  double bytes, time;
};

// Fits time = latency + bytes x slope, by least squares of the relative errors. With absolute errors the largest
// transfer alone would decide.
LinkCost fit(const std::vector<TimedTransfer>& pieces) {
  double weights = 0, bytes = 0, times = 0, squares = 0, products = 0;
  for (const TimedTransfer& piece : pieces) {
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
    const TimedTransfer largest = std::ranges::max(pieces, {}, &TimedTransfer::bytes);
    slope = largest.time / largest.bytes;
    latency = 0;
  }
  return {kPicosPerSecond / slope, static_cast<Picos>(latency + 0.5)};
}

// The maximum size of a measured read.
constexpr std::uint64_t kPieceBytes = std::uint64_t{32} << 20;

// Reads the weights of a graph one after the other, in a cycle, so that the data is not in the processor's cache.
// Compressed weights are read in their compressed form.
struct FileProbe {
  struct Stored {
    const store::File* file;
    std::uint64_t offset, bytes;
  };
  std::shared_ptr<const TensorFiles> files;
  std::vector<Stored> tensors;
  store::BlockReader reader;
  std::size_t next = 0;      // tensor to read from
  std::uint64_t offset = 0;  // in that tensor

  FileProbe(std::shared_ptr<const TensorFiles> from, const Graph& graph, const store::ReaderOptions& options, Here here)
      : files(std::move(from)), reader(options, here) {
    for (const GraphValue& value : graph.values()) {
      if (value.role != ValueRole::kWeight) continue;
      const TensorInfo& one = files->at(value.name, here);
      const model::CompressedTensor* const compressed = compressed_of(*files, one);
      const std::uint64_t bytes = compressed ? compressed->table().begin(compressed->table().blocks()) : one.bytes;
      if (bytes > 0) tensors.push_back({&file_of(*files, one, here), one.offset, bytes});
    }
  }
  std::uint64_t piece_bytes() const {  // REQUIRES: there are tensors
    return std::min(kPieceBytes, std::ranges::max(tensors, {}, &Stored::bytes).bytes);
  }
  void read(std::byte* into, std::uint64_t bytes) {
    while (bytes > 0) {
      const Stored& tensor = tensors[next];
      const std::uint64_t part = std::min(bytes, tensor.bytes - offset);
      reader.read(*tensor.file, tensor.offset + offset, part, {into, part});
      into += part, bytes -= part, offset += part;
      if (offset == tensor.bytes) next = (next + 1) % tensors.size(), offset = 0;
    }
  }
};

void issue_read(const std::shared_ptr<FileProbe>& probe, StreamRef stream, Range to) {
  stream.host([probe, into = runtime::address(to), bytes = to.bytes] { probe->read(into, bytes); },
              {.reads = {}, .writes = {to}, .scalars = {}, .name = "read"});
}

}  // namespace

Costs measure_costs(const Graph& graph, const Device& device, const LoadProbe& load, Here here) {
  if (load.piece_bytes == 0)
    throw Error(ErrorCode::kInvalidValue, "measure_costs: loads of 0 bytes; give LoadProbe::piece_bytes", here);
  const runtime::PrivateScope measuring;  // keeps these ops out of the program's trace
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
    OpBench bench(graph, device, largest);
    const GraphOp* slowest = nullptr;
    Picos longest = 0;
    Samples samples;
    for (const GraphOp* op : ops) {
      const Picos time = bench.time(*op);
      if (time > longest) longest = time, slowest = op;
      samples.add(sample_of(graph, *op, time));
    }
    costs.samples = samples.take();
    bench.interfere(*slowest, longest, one_load, load_time, costs);
  }
  const SustainedTimes sustained = sustained_times(
      graph, device, [&](StreamRef stream) { one_load(stream, 0); }, load_time);
  if (sustained.ops.alone > 0) apply(graph, sustained, costs);
  return costs;
}

LinkCost measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                      std::uint64_t piece_bytes, std::uint64_t unit_bytes, Here here) {
  if (unit_bytes == 0 || piece_bytes < unit_bytes || !issue)
    base::fail(ErrorCode::kInvalidValue, here,
               "measure_link: transfers of {} bytes in multiples of {}{}; give at least one multiple and a "
               "function that issues the transfer",
               piece_bytes, unit_bytes, issue ? "" : ", and no function");
  Stopwatch watch(device);
  std::vector<TimedTransfer> pieces;
  for (const std::uint64_t parts : {1, 4, 16, 1024}) {  // the smallest transfer shows the latency
    const std::uint64_t bytes = piece_bytes / parts / unit_bytes * unit_bytes;
    if (bytes == 0) break;
    const Picos time = watch.time([&](StreamRef stream, int) { issue(stream, bytes); });
    pieces.push_back({static_cast<double>(bytes), static_cast<double>(time)});
  }
  return fit(pieces);
}

// Measures loads the way the runner's Loader issues them on this device, so that the plan is made from the real costs.
Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here) {
  source.check(graph, here);
  const runtime::PrivateScope measuring;  // keeps these ops out of the program's trace
  const std::shared_ptr<const TensorFiles> files = source.files_;
  const auto with_decode = [&](Costs costs) {
    if (source.compressed_bytes(graph)) costs.decode = measure_decode(device, here);
    return costs;
  };
  if (!files) return with_decode(measure_costs(graph, device, LoadProbe{}, here));
  LoadProbe load;
  const bool direct_reads = is_host_memory(device);
  store::ReaderOptions options = reader_options(direct_reads);
  if (direct_reads) {
    const auto cached = std::make_shared<FileProbe>(files, graph, options, here);
    if (!cached->tensors.empty()) {
      load.piece_bytes = cached->piece_bytes();
      load.issue = [cached](StreamRef stream, Range to) { issue_read(cached, stream, to); };
    }
  }
  Costs costs = measure_costs(graph, device, load, here);
  options.cache = store::ReaderOptions::Cache::kNever;
  const auto cold = std::make_shared<FileProbe>(files, graph, options, here);
  if (cold->tensors.empty()) return with_decode(std::move(costs));
  const Buffer landing = device.alloc(cold->piece_bytes(), MemoryKind::kPinned, "read", here);
  costs.read = measure_link(
      device, [&](StreamRef stream, std::uint64_t bytes) { issue_read(cold, stream, landing.slice(0, bytes)); },
      cold->piece_bytes(), 1, here);
  return with_decode(std::move(costs));
}

namespace {

constexpr std::uint64_t kWeights = std::uint64_t{16} << 20;  // number of bf16 weights: 32 MiB
constexpr std::uint64_t kDistinct = std::uint64_t{1} << 18;  // the first weights; the rest repeats them

// bf16 values from a normal distribution: they compress as well as trained weights.
std::vector<std::byte> sample_weights() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.02F);
  std::vector<std::byte> weights(kWeights * 2);
  for (std::uint64_t i = 0; i < kDistinct; ++i) {
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    bits >>= 16;
    std::memcpy(weights.data() + 2 * i, &bits, 2);
  }
  for (std::uint64_t i = kDistinct; i < kWeights; i += kDistinct)
    std::memcpy(weights.data() + 2 * i, weights.data(), 2 * kDistinct);
  return weights;
}

}  // namespace

LinkCost measure_decode(const Device& device, Here here) {
  const runtime::PrivateScope measuring;  // keeps these ops out of the program's trace
  model::BlockTable table(model::Split::kBf16, kWeights, here);
  const model::EncodedBlocks blocks = model::encode_blocks(table, 0, table.blocks(), sample_weights(), here);
  // Offsets in both buffers; the compressed blocks are at 0.
  const std::uint64_t count = table.blocks(), checksums = flow::aligned(blocks.size());
  const std::uint64_t ends = checksums + flow::aligned(8 * count), report = ends + flow::aligned(4 * count);
  Buffer host = device.alloc(report + 8, MemoryKind::kPinned, "decode", here);
  {
    const HostView<std::byte> view = host.host_write<std::byte>(here);
    std::memcpy(view.begin(), blocks.data(), blocks.size());
    std::memcpy(view.begin() + checksums, table.checksums().data(), 8 * count);
    std::memcpy(view.begin() + ends, table.ends().data(), 4 * count);
    std::memset(view.begin() + report, 0, 8);
  }
  const Buffer packed = device.alloc(report + 8, MemoryKind::kDevice, "decode", here);
  const Buffer weights = device.alloc(kWeights * 2, MemoryKind::kDevice, "decode", here);
  const Stream stream = device.stream(StreamFlags::kNonBlocking, 0, here);
  stream.copy(packed, host, "decode", here);
  stream.sync(here);
  const std::vector<Scalar> scalars = model::DecompressSizes::of(table).scalars();
  const std::uint64_t decoded_block = table.weights_begin(1);  // bytes of the weights of one block
  return measure_link(
      device,
      [&](StreamRef on, std::uint64_t bytes) {
        const std::uint64_t decoded = bytes / decoded_block;  // number of blocks
        on.launch(model::decompress_kernel(),
                  {.reads = {packed.slice(0, table.begin(decoded)), packed.slice(checksums, 8 * decoded),
                             packed.slice(ends, 4 * decoded)},
                   .writes = {weights.slice(0, bytes), packed.slice(report, 8)},
                   .scalars = scalars,
                   .name = "decode"},
                  {.bytes = table.begin(decoded) + bytes});
      },
      kWeights * 2, decoded_block, here);
}

}  // namespace slip
