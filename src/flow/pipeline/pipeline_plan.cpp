// Planning the chunk size and depth of a pipeline, and measuring the stages that the plan is made from. Small chunks
// lose time to latency. Large ones lose time to the first and the last chunk, whose copies overlap with nothing.
#include <algorithm>
#include <vector>

#include "base/fail.hpp"
#include "flow/costs/measuring.hpp"
#include "flow/pipeline/pipeline_loop.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr std::uint64_t kMaxChunks = 1'000'000;
constexpr std::uint32_t kMaxDepth = 1024;
constexpr Picos kNear = 100;                  // plans at most 1/100 slower than the best one count as equally good
constexpr std::uint64_t kTriedOneByOne = 64;  // chunk counts up to this are all tried, above it in steps of 1/16

std::uint64_t divide_up(std::uint64_t amount, std::uint64_t by) { return amount / by + (amount % by != 0 ? 1 : 0); }

// The time that each chunk after the first adds. Without copy engines nothing overlaps. With one slot a kernel cannot
// overlap with copies.
Picos period(const PipelinePlan& plan, int copy_engines) {
  if (copy_engines == 0) return plan.in + plan.kernels + plan.out;
  const Picos copies = copy_engines == 1 ? plan.in + plan.out : std::max(plan.in, plan.out);
  return plan.depth == 1 ? plan.kernels + copies : std::max(plan.kernels, copies);
}

Picos bound_of(const PipelineSpec& spec, int copy_engines) {
  const auto without_latency = [&](const LinkCost& link, std::uint64_t bytes) {
    return link.time_for(bytes) - link.latency;
  };
  PipelinePlan whole;
  whole.depth = 2;
  whole.in = without_latency(spec.stages.in, spec.elements * spec.bytes_in);
  whole.kernels = without_latency(spec.stages.kernels, spec.elements * spec.bytes_in);
  whole.out = without_latency(spec.stages.out, spec.elements * spec.bytes_out);
  return period(whole, copy_engines);
}

PipelinePlan plan_with(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth, int copy_engines) {
  PipelinePlan plan;
  plan.chunk = chunk;
  plan.chunks = divide_up(spec.elements, chunk);
  plan.depth = static_cast<std::uint32_t>(std::min<std::uint64_t>(depth, plan.chunks));
  plan.memory = plan.depth * (aligned(chunk * spec.bytes_in) + aligned(chunk * spec.bytes_out));
  plan.in = spec.stages.in.time_for(chunk * spec.bytes_in);
  plan.kernels = spec.stages.kernels.time_for(chunk * spec.bytes_in);
  plan.out = spec.stages.out.time_for(chunk * spec.bytes_out);
  const auto others = static_cast<Picos>(plan.chunks - 1);
  plan.predicted = plan.in + plan.kernels + plan.out + others * period_of(spec, plan, copy_engines);
  return plan;
}

// Divides the elements evenly, so that the last chunk is not a small remainder.
std::uint64_t chunk_for(const PipelineSpec& spec, std::uint64_t chunks) {
  return std::min(divide_up(divide_up(spec.elements, chunks), spec.granule) * spec.granule, spec.elements);
}

// Of the plans that are near the best time: the one with the fewest chunks, then slots.
const PipelinePlan& choose(const std::vector<PipelinePlan>& plans) {
  const Picos best = std::ranges::min(plans, {}, &PipelinePlan::predicted).predicted;
  const PipelinePlan* chosen = nullptr;
  for (const PipelinePlan& plan : plans) {
    if (plan.predicted > best + best / kNear) continue;
    if (!chosen || std::pair(plan.chunks, plan.depth) < std::pair(chosen->chunks, chosen->depth)) chosen = &plan;
  }
  return *chosen;
}

[[noreturn]] void refuse_memory(const PipelineSpec& spec, Here here) {
  const std::uint64_t chunk = spec.chunk > 0 ? spec.chunk : spec.granule;
  const std::uint32_t depth = std::max(spec.depth, 1u);
  const std::uint64_t needed = min_memory(spec, chunk, depth);
  base::fail(ErrorCode::kInvalidValue, here,
             "pipeline: {} bytes of device memory are too few for chunks of {} elements of {} and {} bytes "
             "in {} slot(s): at least {} bytes are needed",
             spec.memory, std::min(chunk, spec.elements), spec.bytes_in, spec.bytes_out, depth, needed);
}

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;  // bytes: large enough to show the rate of a stage
constexpr std::uint64_t kChunks = 64;                      // maximum number of chunks that measure_chunk runs
constexpr std::uint64_t kTried = 12;                       // maximum number of chunks that measure_beside runs
constexpr std::uint64_t kMinParts = 16;                    // measure_link also measures 1/16 of a piece

bool known(const LinkCost& link) { return link.bytes_per_second > 0; }

// The number of elements of the largest measured piece. If memory and data allow, 1/16 of it is a whole number of
// granules.
std::uint64_t piece_of(const PipelineSpec& spec) {
  const std::uint64_t wanted = std::max<std::uint64_t>(kPiece / std::max(spec.bytes_in, spec.bytes_out), 1);
  std::uint64_t granules =
      std::clamp<std::uint64_t>(wanted / spec.granule, 1, std::max<std::uint64_t>(spec.elements / spec.granule, 1));
  while (granules > 1 && min_memory(spec, granules * spec.granule, 1) > spec.memory) granules /= 2;
  if (granules > kMinParts) granules -= granules % kMinParts;
  return std::min(granules * spec.granule, spec.elements);
}

void measure_links(const Device& device, const PipelineSpec& spec, PipelineStages& stages, Here here) {
  const std::uint64_t piece = piece_of(spec);
  const std::uint64_t in_bytes = piece * spec.bytes_in, out_bytes = piece * spec.bytes_out;
  const std::uint64_t unit = std::min(spec.granule, piece);
  const std::uint64_t in_unit = unit * spec.bytes_in, out_unit = unit * spec.bytes_out;
  const Buffer input = device.alloc(in_bytes, MemoryKind::kDevice, "pipeline in", here);
  const Buffer output = device.alloc(out_bytes, MemoryKind::kDevice, "pipeline out", here);
  const std::uint64_t all = spec.elements * std::max(spec.bytes_in, spec.bytes_out);
  HostRing host(device, std::max({in_bytes, out_bytes, std::min(all, HostRing::kEnough)}), here);
  const Stream zeros = device.stream(StreamFlags::kNonBlocking);
  // Zeros are safe for every kernel: as indices, other bytes might point outside of the buffers.
  zeros.fill(input, 0, "zeros", here);
  zeros.fill(output, 0, "zeros", here);
  zeros.sync(here);
  const auto measure = [&](LinkCost& link, std::uint64_t bytes, std::uint64_t unit_bytes, const auto& issue) {
    if (!known(link)) link = measure_link(device, issue, bytes, unit_bytes, here);
  };
  measure(stages.in, in_bytes, in_unit,
          [&](StreamRef stream, std::uint64_t bytes) { stream.copy(input.slice(0, bytes), host.next(bytes)); });
  measure(stages.out, out_bytes, out_unit,
          [&](StreamRef stream, std::uint64_t bytes) { stream.copy(host.next(bytes), output.slice(0, bytes)); });
  measure(stages.kernels, in_bytes, in_unit, [&](StreamRef stream, std::uint64_t bytes) {
    const std::uint64_t elements = bytes / spec.bytes_in;
    spec.issue({.stream = stream,
                .input = input.slice(0, elements * spec.bytes_in),
                .output = output.slice(0, elements * spec.bytes_out),
                .elements = elements});
  });
}

// The median time of a whole run of the loop. The host memory holds all chunks. If they are together larger than
// HostRing::kEnough, it holds one chunk, which all copies use, so that measuring takes little pinned memory.
Picos time_loop(const Device& device, const PipelineSpec& spec, const PipelinePlan& plan, Here here) {
  const std::uint64_t chunk = plan.chunk * std::max(spec.bytes_in, spec.bytes_out);
  const std::uint64_t elements = chunk * plan.chunks > HostRing::kEnough ? plan.chunk : spec.elements;
  HostRing in(device, elements * spec.bytes_in, here), out(device, elements * spec.bytes_out, here);
  PipelineLoop loop(device, spec, plan, here);
  loop.set_ends({.source = in.next(elements * spec.bytes_in),
                 .sink = out.next(elements * spec.bytes_out),
                 .same_place = elements < spec.elements},
                here);
  std::vector<Picos> times;
  for (int i = 0; i < 4; ++i) {
    loop.issue(here);
    loop.drain(here);
    if (i > 0) times.push_back(loop.elapsed());  // run 0 is the warm-up
  }
  return median(std::move(times));
}

// Runs the loop with the smallest possible chunks: the time per chunk is the fixed cost of a chunk.
Picos measure_chunk(const Device& device, PipelineSpec spec, Here here) {
  PipelinePlan plan;
  plan.chunk = std::min(spec.granule, spec.elements);
  plan.chunks = std::min(kChunks, spec.elements / plan.chunk);
  plan.depth = min_memory(spec, plan.chunk, 2) <= spec.memory ? 2 : 1;
  spec.elements = plan.chunks * plan.chunk;
  return time_loop(device, spec, plan, here) / static_cast<Picos>(plan.chunks);
}

// Runs the first chunks of the plan. Returns PipelineStages::beside: how much longer each further chunk takes than
// expected, as a fraction of the expected time.
double measure_beside(const Device& device, PipelineSpec spec, PipelinePlan plan, Here here) {
  plan.chunks = std::min(plan.chunks, kTried);
  if (plan.chunks < 3) return 0;  // the three stages never run at the same time
  spec.elements = std::min(spec.elements, plan.chunks * plan.chunk);
  const Picos full = time_loop(device, spec, plan, here) - (plan.in + plan.kernels + plan.out);
  const Picos expected = period_of(spec, plan, device.info().copy_engines) * static_cast<Picos>(plan.chunks - 1);
  return std::clamp(static_cast<double>(full) / static_cast<double>(expected) - 1, 0.0, 10.0);
}

}  // namespace

Picos period_of(const PipelineSpec& spec, const PipelinePlan& plan, int copy_engines) {
  const double stages = static_cast<double>(period(plan, copy_engines)) * (1 + spec.stages.beside);
  return std::max(static_cast<Picos>(stages + 0.5), spec.stages.chunk);
}

std::uint64_t min_memory(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth) {
  const std::uint64_t elements = std::min(chunk, spec.elements);
  return std::min<std::uint64_t>(depth, divide_up(spec.elements, elements)) *
         (aligned(elements * spec.bytes_in) + aligned(elements * spec.bytes_out));
}

void require_sane(const PipelineSpec& spec, Here here) {
  const auto refuse = [&]<class... Values>(fmt::format_string<Values...> why, Values&&... values) {
    base::fail(ErrorCode::kInvalidValue, here, "pipeline: {}", fmt::format(why, std::forward<Values>(values)...));
  };
  if (spec.elements == 0) refuse("0 elements: there is nothing to do; give PipelineSpec::elements");
  if (spec.bytes_in == 0 || spec.bytes_out == 0)
    refuse("elements of {} bytes in and {} bytes out: both must be at least 1", spec.bytes_in, spec.bytes_out);
  // At most a quarter of the range of int64, so that sums of input and output bytes, rounded up, cannot overflow.
  std::uint64_t in = 0, out = 0;
  if (__builtin_mul_overflow(spec.elements, spec.bytes_in, &in) ||
      __builtin_mul_overflow(spec.elements, spec.bytes_out, &out) || in > INT64_MAX / 4 || out > INT64_MAX / 4)
    refuse("{} elements of {} and {} bytes are more than can be counted", spec.elements, spec.bytes_in, spec.bytes_out);
  if (spec.stages.chunk < 0 || !(spec.stages.beside >= 0 && spec.stages.beside <= 10))
    refuse("PipelineStages::chunk is {} ps, and must be 0 or more; PipelineStages::beside is {}, and must be 0 to 10",
           spec.stages.chunk, spec.stages.beside);
  if (spec.granule == 0) refuse("a granule of 0 elements; give at least 1");
  // Missing rates are measured with whole granules, so no chunk may be smaller.
  if (spec.chunk < spec.elements && spec.chunk % spec.granule != 0)
    refuse("chunks of {} elements are no multiple of the granule of {}", spec.chunk, spec.granule);
  if (spec.depth > kMaxDepth) refuse("{} slots; at most {}", spec.depth, kMaxDepth);
  if (spec.chunk > 0 && divide_up(spec.elements, spec.chunk) > kMaxChunks)
    refuse("chunks of {} elements make {} of them; at most {}", spec.chunk, divide_up(spec.elements, spec.chunk),
           kMaxChunks);
  if (!spec.issue) refuse("no function that issues the kernels of a chunk; give PipelineSpec::issue");
}

PipelinePlan measure_and_plan(const Device& device, PipelineSpec& spec, Here here) {
  const int engines = device.info().copy_engines;
  PipelineStages& stages = spec.stages;
  if (known(stages.in) && known(stages.kernels) && known(stages.out)) return plan_pipeline(spec, engines, here);
  if (min_memory(spec, spec.granule, 1) > spec.memory) {
    PipelineSpec assumed = spec;  // any rate will do: the planner throws the error that names the missing memory
    assumed.stages = {.in = {1e9, 0}, .kernels = {1e9, 0}, .out = {1e9, 0}};
    return plan_pipeline(assumed, engines, here);
  }
  measure_links(device, spec, stages, here);
  if (stages.chunk == 0) stages.chunk = measure_chunk(device, spec, here);
  const PipelinePlan alone = plan_pipeline(spec, engines, here);
  if (stages.beside > 0) return alone;
  stages.beside = measure_beside(device, spec, alone, here);
  return plan_pipeline(spec, engines, here);
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

PipelinePlan plan_pipeline(const PipelineSpec& spec, int copy_engines, Here here) {
  require_sane(spec, here);
  std::vector<PipelinePlan> plans;
  const auto consider = [&](std::uint64_t chunk) {
    for (std::uint32_t depth = std::max(spec.depth, 1u); depth <= std::max(spec.depth, 2u); ++depth) {
      if (depth > 1 && spec.depth == 0 && chunk >= spec.elements) break;  // one chunk needs one slot
      if (min_memory(spec, chunk, depth) > spec.memory) break;
      plans.push_back(plan_with(spec, chunk, depth, copy_engines));
      if (spec.depth > 0) break;
    }
  };
  if (spec.chunk > 0) {
    consider(std::min(spec.chunk, spec.elements));
  } else {
    const std::uint64_t max_chunks = std::min(divide_up(spec.elements, spec.granule), kMaxChunks);
    for (std::uint64_t chunks = 1; chunks < max_chunks; chunks += chunks < kTriedOneByOne ? 1 : chunks / 16)
      consider(chunk_for(spec, chunks));
    consider(chunk_for(spec, max_chunks));
  }
  if (plans.empty()) refuse_memory(spec, here);
  PipelinePlan chosen = choose(plans);
  chosen.bound = bound_of(spec, copy_engines);
  return chosen;
}

std::string PipelinePlan::text() const {
  return fmt::format(
      "{} chunks of {} elements in {} slots, {} bytes of device memory; a chunk takes {:.1f} us in, "
      "{:.1f} us of kernels, {:.1f} us out; predicted {:.1f} us, bound {:.1f} us",
      chunks, chunk, depth, memory, static_cast<double>(in) / 1e6, static_cast<double>(kernels) / 1e6,
      static_cast<double>(out) / 1e6, static_cast<double>(predicted) / 1e6, static_cast<double>(bound) / 1e6);
}

}  // namespace slip
