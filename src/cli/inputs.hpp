// Arguments that name an input: numbers within limits, devices, and traces. A wrong one throws UsageError.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/trace.hpp"

namespace CLI {
class Validator;
}

namespace slip::cli {

// A number within these limits. CLI::Range accepts NaN; this does not.
CLI::Validator number_between(double min, double max);

bool has_backend(std::string_view prefix);  // "cpu", "sim", "cuda": compiled into this program
// Throws UsageError if the device cannot be opened, with the reason and the names of the devices that can.
Device open_device(const std::string& name, const DeviceOptions& options = {});

struct NamedTrace {
  std::string name;  // the file name; of a merged trace "run.0.json and 3 more: ranks 0 to 3"
  TraceData data;
};

// Each file separately; files of one job's ranks are merged into one trace.
std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths);

// Name of a device of the trace: "device 2". In a merged trace "rank 1", or "rank 1 device 2" if the rank has several.
std::string device_text(const TraceData& trace, std::uint32_t device);

}  // namespace slip::cli
