// write_page(): writes a trace as a self-contained HTML timeline. The page opens offline, makes no network request and
// runs no script but its own, whatever names the trace contains.
#pragma once

#include <string>

#include "slip/trace.hpp"

namespace slip {

struct PageOptions {
  std::string title = {};                 // default: the file name
  const TraceData* prediction = nullptr;  // of the same program: shown below the measured run, op by op
};

// Replaces the file atomically. A failure throws kIo with the path and the reason, and keeps the old file.
void write_page(const TraceData& trace, const std::string& path, const PageOptions& options = {},
                Here here = Here::at());

}  // namespace slip
