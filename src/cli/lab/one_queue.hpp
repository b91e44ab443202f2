// Labs whose case needs one hardware queue, on a GPU. The driver reads the number of queues when a process first uses
// it (CUDA_DEVICE_MAX_CONNECTIONS), and never again. So the case runs in processes of its own: this program, started
// again with the hidden command `one-queue`.
//
// The ranks of lab gradients must be processes there for another reason, too. In one queue of one process, a stream
// that waits for a call would be in front of the call of another rank: a deadlock.
#pragma once

#include <string_view>

#include "base/json_fields.hpp"
#include "cli/lab/lab.hpp"

namespace slip::cli {

inline constexpr int kQueuesOfLabs = 32;  // of all other cases on a GPU: no two streams of a lab share a queue

// The place of such a result in errors.
inline constexpr const char* kResultOfCase = "the result of the case with one hardware queue";

inline constexpr Picos kMaxCaseTime = Picos{1} << 60;  // of a case

// Runs the case of this lab in `ranks` processes and returns what rank 0 reports. Throws if a process fails.
base::Json run_with_one_queue(const Bench& bench, std::string_view lab, int ranks);

// The case itself, in such a process. Only rank 0's result counts.
base::Json hook_with_one_queue(const Bench& bench);
base::Json gradients_with_one_queue(const Bench& bench);

}  // namespace slip::cli
