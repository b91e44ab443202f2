// The timeline page: one HTML file that shows a trace, with everything it needs inside. It opens without a network and
// asks for none, and runs no script but its own, whatever the names in the trace are.
#pragma once

#include <string>

#include "slip/trace.hpp"

namespace slip {

struct PageOptions {
  std::string title = {};                 // default: the file's name
  const TraceData* prediction = nullptr;  // of the same program: laid under what was measured, op by op
};

// Writes it whole or not at all: a failure throws kIo with the path and the reason and leaves what was there.
void write_page(const TraceData& trace, const std::string& path, const PageOptions& options = {},
                Here here = Here::at());

}  // namespace slip
