// Reads trace files. Files that this library wrote are restored exactly. Of Chrome traces of other programs, the parts
// that have a meaning here are read.
#pragma once

#include <string>
#include <string_view>

#include "base/json_reader.hpp"
#include "slip/trace.hpp"

namespace slip::watch {

// `file_bytes` determines how much memory is reserved; 0: the size is unknown.
TraceData read_trace_events(base::JsonReader& json, std::size_t file_bytes);

// Reads a trace from memory, plain or compressed. `name` is for error messages.
TraceData parse_trace(std::string_view text, const std::string& name, Here here = Here::at());

}  // namespace slip::watch
