// The stages of a pipeline, measured one by one in the memory that it may use.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "flow/costs/stopwatch.hpp"
#include "flow/pipeline/pipeline_loop.hpp"
#include "flow/pipeline/pipeline_plan.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;  // bytes of input that show the rate
constexpr std::uint64_t kChunks = 64;                      // that show what a chunk costs
constexpr std::uint64_t kTried = 12;                       // that show how stages slow each other
constexpr std::uint64_t kMinParts = 16;                    // measure_link goes down to a sixteenth

bool known(const LinkCost& link) { return link.bytes_per_second > 0; }

// Elements of the largest piece: many enough to be cut in whole granules, if the memory and the data have them.
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
  zeros.fill(input, 0, "zeros", here);  // what every kernel can take: other bytes may be places in other memory
  zeros.fill(output, 0, "zeros", here);
  zeros.sync(here);
  if (!known(stages.in))
    stages.in = measure_link(
        device, [&](StreamRef stream, std::uint64_t bytes) { stream.copy(input.slice(0, bytes), host.next(bytes)); },
        in_bytes, in_unit, here);
  if (!known(stages.out))
    stages.out = measure_link(
        device, [&](StreamRef stream, std::uint64_t bytes) { stream.copy(host.next(bytes), output.slice(0, bytes)); },
        out_bytes, out_unit, here);
  if (!known(stages.kernels))
    stages.kernels = measure_link(
        device,
        [&](StreamRef stream, std::uint64_t bytes) {
          const std::uint64_t elements = bytes / spec.bytes_in;
          spec.issue({.stream = stream,
                      .input = input.slice(0, elements * spec.bytes_in),
                      .output = output.slice(0, elements * spec.bytes_out),
                      .elements = elements});
        },
        in_bytes, in_unit, here);
}

// Of a whole run of the loop. Its memory on the host is of all chunks, or of one where one is larger than caches are.
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
    if (i > 0) times.push_back(loop.elapsed());  // the first warms
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// The loop with the smallest chunks there are: what is left is what every chunk costs.
Picos measure_chunk(const Device& device, PipelineSpec spec, Here here) {
  PipelinePlan plan;
  plan.chunk = std::min(spec.granule, spec.elements);
  plan.chunks = std::min(kChunks, spec.elements / plan.chunk);
  plan.depth = min_memory(spec, plan.chunk, 2) <= spec.memory ? 2 : 1;
  spec.elements = plan.chunks * plan.chunk;
  return time_loop(device, spec, plan, here) / static_cast<Picos>(plan.chunks);
}

// The first chunks of the plan, against what they should take.
double measure_beside(const Device& device, PipelineSpec spec, PipelinePlan plan, Here here) {
  plan.chunks = std::min(plan.chunks, kTried);
  if (plan.chunks < 3) return 0;
  spec.elements = std::min(spec.elements, plan.chunks * plan.chunk);
  const Picos full = time_loop(device, spec, plan, here) - (plan.in + plan.kernels + plan.out);
  const Picos expected = period_of(spec, plan, device.info().copy_engines) * static_cast<Picos>(plan.chunks - 1);
  return std::clamp(static_cast<double>(full) / static_cast<double>(expected) - 1, 0.0, 10.0);
}

}  // namespace

PipelinePlan measure_and_plan(const Device& device, PipelineSpec& spec, Here here) {
  const int engines = device.info().copy_engines;
  PipelineStages& stages = spec.stages;
  if (known(stages.in) && known(stages.kernels) && known(stages.out)) return plan_pipeline(spec, engines, here);
  if (min_memory(spec, spec.granule, 1) > spec.memory) {
    PipelineSpec assumed = spec;  // the planner says what is missing; any rate will do for that
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

}  // namespace slip
