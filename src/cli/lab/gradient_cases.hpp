// What the two halves of lab gradients share: the cases, and the layers.
#pragma once

#include "cli/lab/bench.hpp"
#include "flow/gradients/predict_step.hpp"

namespace slip::cli {

struct StepCase {
  const char* name;
  WaitPolicy policy;
  BucketRule rule;
  int queues;  // 0: as many as the device has
};

inline constexpr StepCase kStepCases[] = {
    {"in the compute stream", WaitPolicy::kInCompute, BucketRule::kEach, 0},
    {"own stream, waits at the end", WaitPolicy::kAtTheEnd, BucketRule::kEach, 0},
    {"the same, one hardware queue", WaitPolicy::kAtTheEnd, BucketRule::kEach, 1},
    {"DDP's buckets", WaitPolicy::kAtTheEnd, BucketRule::kDdp, 0},
    {"planned, waits by need", WaitPolicy::kByNeed, BucketRule::kPlanned, 0},
};

// Layers grow towards the end of the forward pass, as those of convolutional networks do.
std::uint64_t bytes_of_layer(std::size_t layer, std::size_t layers);

// On cpu: ranks that are threads reduce real gradients.
void gradients_of_ranks(const Bench& bench, std::size_t layers, std::size_t ranks, Report& report);

}  // namespace slip::cli
