// Functions that planning a pipeline, measuring its stages and running it share.
#pragma once

#include "slip/pipeline.hpp"

namespace slip {

// Throws kInvalidValue with the numbers. Afterwards products of the spec's sizes cannot overflow.
void require_sane(const PipelineSpec& spec, Here here);
// The aligned size of a slot for `bytes` bytes.
std::uint64_t slot_bytes(std::uint64_t bytes);
std::uint64_t min_memory(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth);
// The time that each further chunk adds once the pipeline is full.
Picos period_of(const PipelineSpec& spec, const PipelinePlan& plan, int copy_engines);
// Measures the stages that the spec does not give, sets them in the spec, and plans. The first plan is tried out,
// because stages that run concurrently slow each other; then the pipeline is planned again.
PipelinePlan measure_and_plan(const Device& device, PipelineSpec& spec, Here here);
}  // namespace slip
