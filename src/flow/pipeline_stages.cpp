// The stages of a pipeline, measured one by one in the memory that it may use.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "flow/host_ring.hpp"
#include "flow/pipeline_loop.hpp"
#include "flow/pipeline_plan.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;  // bytes of input that show the rate
constexpr std::uint64_t kChunks = 64;                      // that show what a chunk costs
constexpr std::uint64_t kLeastParts = 16;                  // measure_link goes down to a sixteenth

bool known(const Link& link) { return link.bytes_per_second > 0; }

// Elements of the largest piece: many enough to be cut in whole granules, if the memory and the data have them.
std::uint64_t piece_of(const PipelineSpec& spec) {
  const std::uint64_t wanted = std::max<std::uint64_t>(kPiece / std::max(spec.bytes_in, spec.bytes_out), 1);
  std::uint64_t granules =
      std::clamp<std::uint64_t>(wanted / spec.granule, 1, std::max<std::uint64_t>(spec.elements / spec.granule, 1));
  while (granules > 1 && least_memory(spec, granules * spec.granule, 1) > spec.memory) granules /= 2;
  if (granules > kLeastParts) granules -= granules % kLeastParts;
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
  device.fill(input, 0, here);  // what every kernel can take: other bytes may be places in other memory
  device.fill(output, 0, here);
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

// The loop itself with the smallest chunks there are: what is left is what every chunk costs.
Picos measure_chunk(const Device& device, PipelineSpec spec, Here here) {
  const std::uint64_t unit = std::min(spec.granule, spec.elements);
  PipelinePlan plan;
  plan.chunk = unit;
  plan.chunks = std::min(kChunks, spec.elements / unit);
  plan.depth = least_memory(spec, unit, 2) <= spec.memory ? 2 : 1;
  spec.elements = plan.chunks * unit;
  const Buffer host = device.alloc(unit * std::max(spec.bytes_in, spec.bytes_out), MemoryKind::kPinned, "chunk", here);
  PipelineLoop loop(device, spec, plan, here);
  loop.set_ends(
      {.source = host.slice(0, unit * spec.bytes_in), .sink = host.slice(0, unit * spec.bytes_out), .same_place = true},
      here);
  std::vector<Picos> times;
  for (int i = 0; i < 4; ++i) {
    loop.issue(here);
    loop.drain(here);
    if (i > 0) times.push_back(loop.elapsed() / static_cast<Picos>(plan.chunks));  // the first warms
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace

PipelineStages measure_stages(const Device& device, const PipelineSpec& spec, Here here) {
  PipelineStages stages = spec.stages;
  if (known(stages.in) && known(stages.kernels) && known(stages.out)) return stages;
  if (least_memory(spec, spec.granule, 1) > spec.memory) {
    PipelineSpec assumed = spec;  // the planner says what is missing; any rate will do for that
    assumed.stages = {.in = {1e9, 0}, .kernels = {1e9, 0}, .out = {1e9, 0}};
    static_cast<void>(plan_pipeline(assumed, 2, here));
  }
  measure_links(device, spec, stages, here);
  if (stages.chunk == 0) stages.chunk = measure_chunk(device, spec, here);
  return stages;
}

}  // namespace slip
