// What planning a pipeline and building it share.
#pragma once

#include "slip/pipeline.hpp"

namespace slip {

// Throws kInvalidValue with the numbers; after it sizes can be multiplied without care.
void require_sane(const PipelineSpec& spec, Here here);
// Of one slot of so many bytes, aligned.
std::uint64_t slot_bytes(std::uint64_t bytes);
std::uint64_t least_memory(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth);
// The stages that the spec gives, and the others as measured on the device.
PipelineStages measure_stages(const Device& device, const PipelineSpec& spec, Here here);

}  // namespace slip
