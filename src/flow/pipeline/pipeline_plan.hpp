// What planning a pipeline and building it share.
#pragma once

#include "slip/pipeline.hpp"

namespace slip {

// Throws kInvalidValue with the numbers; after it sizes can be multiplied without care.
void require_sane(const PipelineSpec& spec, Here here);
// Of one slot of so many bytes, aligned.
std::uint64_t slot_bytes(std::uint64_t bytes);
std::uint64_t min_memory(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth);
// How much time each chunk adds once the pipeline is full.
Picos period_of(const PipelineSpec& spec, const PipelinePlan& plan, int copy_engines);
// Plans with the stages that the spec gives, and the others as measured, which it then has. The plan is tried before it
// is taken: beside each other stages take longer than alone.
PipelinePlan measure_and_plan(const Device& device, PipelineSpec& spec, Here here);
}  // namespace slip
