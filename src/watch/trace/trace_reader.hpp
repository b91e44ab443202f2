// Reads trace files: those that this library wrote, exactly; Chrome traces of other programs as far as they go.
#pragma once

#include <string>
#include <string_view>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"

namespace slip {

// `file_bytes` says how much memory to reserve; 0 if the size is not known.
TraceData read_trace_events(JsonReader& json, std::size_t file_bytes);

// Reads a trace from memory, plain or compressed; `name` is for error texts.
TraceData parse_trace(std::string_view text, const std::string& name, Here here = Here::at());

}  // namespace slip
