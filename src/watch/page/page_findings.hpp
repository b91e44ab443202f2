// What the checks found in a trace, in one form for the timeline page: a new kind of finding is one more
// function of a few lines, called in findings_of().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/trace.hpp"

namespace slip {

struct Finding {
  std::string_view kind;             // one word for all of its sort
  std::string title;                 // one line
  std::string detail;                // what it means and the way out
  std::vector<std::uint32_t> spans;  // the ops it is about
};

std::vector<Finding> findings_of(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
