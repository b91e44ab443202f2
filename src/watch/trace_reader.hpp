// Reading a trace back.
#pragma once

#include <string>
#include <string_view>

#include "slip/trace.hpp"

namespace slip {

// As read_trace, from a text; `name` is used in messages.
TraceData parse_trace(std::string_view text, const std::string& name, Here here = Here::at());

}  // namespace slip
