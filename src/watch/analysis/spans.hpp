// Putting the records of a trace together.
#pragma once

#include "slip/trace.hpp"

namespace slip {

enum class RunNames { kOfTheirOps, kTheirOwn };

// The one form in which data() and read_trace() agree: records by sequence, buffers by id and once each, runs with the
// name and place of their op. kTheirOwn: they have those already.
void tidy(TraceData& data, RunNames names = RunNames::kOfTheirOps);

}  // namespace slip
