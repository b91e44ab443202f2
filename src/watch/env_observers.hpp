// The observers that environment variables start (SLIP_TRACE, SLIP_CHECK). runtime/observers.hpp declares
// start_observers().
#pragma once

#include <optional>
#include <string>

#include "base/env.hpp"

namespace slip::watch {

// The file that SLIP_TRACE names for this process. "%r" becomes the rank (0 outside a job) and "%p" the process id. If
// the pattern has neither, each rank of a job gets its own file: run.json -> run.0.json.
std::string trace_path(const std::string& pattern, std::optional<base::JobRank> rank, int process);

}  // namespace slip::watch
