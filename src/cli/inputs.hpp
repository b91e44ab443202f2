// Arguments that name an input: numbers within limits, devices, and traces. A wrong one throws UsageError.
#pragma once

#include <string>
#include <vector>

#include "slip/device.hpp"
#include "slip/trace.hpp"

namespace CLI {
class Validator;
}

namespace slip::cli {

// A number within these limits. CLI::Range accepts NaN; this does not.
CLI::Validator number_between(double min, double max);

// Throws UsageError for a device that is not there, with the reason and the names that there are.
Device open_device(const std::string& name, const DeviceOptions& options = {});

struct NamedTrace {
  std::string name;  // the file's; of merged ones "run.0.json and 3 more: ranks 0 to 3"
  TraceData data;
};

// Each file by itself, or, if all are ranks of one job, one trace that holds them all.
std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths);

// A device of the trace in words: "device 2", or "rank 1" in a merged trace, where its rank has no other.
std::string device_text(const TraceData& trace, std::uint32_t device);

}  // namespace slip::cli
