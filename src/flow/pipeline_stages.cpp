// The stages of a pipeline, measured one by one in the memory that it may use.
#include <fmt/format.h>

#include <algorithm>

#include "flow/pipeline_plan.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kPiece = std::uint64_t{16} << 20;  // bytes of input that show the rate
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

}  // namespace

PipelineStages measure_stages(const Device& device, const PipelineSpec& spec, Here here) {
  PipelineStages stages = spec.stages;
  if (known(stages.in) && known(stages.kernels) && known(stages.out)) return stages;
  const std::uint64_t piece = piece_of(spec);
  if (least_memory(spec, piece, 1) > spec.memory) {
    PipelineSpec assumed = spec;  // the planner says what is missing; any rate will do for that
    assumed.stages = {.in = {1e9, 0}, .kernels = {1e9, 0}, .out = {1e9, 0}};
    static_cast<void>(plan_pipeline(assumed, 2, here));
  }
  const std::uint64_t in_bytes = piece * spec.bytes_in, out_bytes = piece * spec.bytes_out;
  const Buffer input = device.alloc(in_bytes, MemoryKind::kDevice, "pipeline in", here);
  const Buffer output = device.alloc(out_bytes, MemoryKind::kDevice, "pipeline out", here);
  const Buffer host = device.alloc(std::max(in_bytes, out_bytes), MemoryKind::kPinned, "pipeline host", here);
  device.fill(input, 0, here);  // what every kernel can take: other bytes may be places in other memory
  device.fill(output, 0, here);
  if (!known(stages.in))
    stages.in = measure_link(
        device,
        [&](StreamRef stream, std::uint64_t bytes) { stream.copy(input.slice(0, bytes), host.slice(0, bytes)); },
        in_bytes, here);
  if (!known(stages.out))
    stages.out = measure_link(
        device,
        [&](StreamRef stream, std::uint64_t bytes) { stream.copy(host.slice(0, bytes), output.slice(0, bytes)); },
        out_bytes, here);
  if (!known(stages.kernels))
    stages.kernels = measure_link(
        device,
        [&](StreamRef stream, std::uint64_t bytes) {
          const std::uint64_t whole = bytes / spec.bytes_in / spec.granule * spec.granule;
          const std::uint64_t elements = std::clamp(whole, std::min(spec.granule, piece), piece);
          spec.issue({.stream = stream,
                      .input = input.slice(0, elements * spec.bytes_in),
                      .output = output.slice(0, elements * spec.bytes_out),
                      .elements = elements});
        },
        in_bytes, here);
  return stages;
}

}  // namespace slip
