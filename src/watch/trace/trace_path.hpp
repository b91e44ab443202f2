// The file that SLIP_TRACE names.
#pragma once

#include <optional>
#include <string>

#include "base/env.hpp"

namespace slip {

// "%r" becomes the rank (0 in no job) and "%p" the process id. Ranks of one job have the same SLIP_TRACE: where the
// pattern has neither, each rank's number is put before the ending, run.json -> run.0.json.
std::string trace_path(const std::string& pattern, std::optional<JobRank> rank, int process);

}  // namespace slip
