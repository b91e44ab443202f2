// The traces that a command line names.
#pragma once

#include <string>
#include <vector>

#include "slip/trace.hpp"

namespace slip::cli {

struct NamedTrace {
  std::string name;  // the file's; of merged ones "run.0.json and 3 more: ranks 0 to 3"
  TraceData data;
};

// Each file by itself, or, if all are ranks of one job, one trace that holds them all.
std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths);

// A device of the trace in words: "device 2", or "rank 1" in a merged trace, where its rank has no other.
std::string device_text(const TraceData& trace, std::uint32_t device);

}  // namespace slip::cli
