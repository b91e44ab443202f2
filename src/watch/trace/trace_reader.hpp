// Reads traces: this library's own to the last field, others as far as they go.
#pragma once

#include <string>
#include <string_view>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"

namespace slip {

// `file_bytes` is a hint for how much memory to take at once; 0 if it is not known.
TraceData read_trace_events(JsonReader& json, std::size_t file_bytes);

// A trace in memory, plain or compressed; `name` is for messages.
TraceData parse_trace(std::string_view text, const std::string& name, Here here = Here::at());

}  // namespace slip
