// A recorded, read or predicted trace.
#pragma once

#include "objects.hpp"

namespace slip::python {

struct TraceObject {
  std::shared_ptr<const TraceData> data;
};

}  // namespace slip::python
