// The bars of this area, one function for each file. All of them take the samples of both sides themselves
// (Bar::record), because the target is about the difference or the quotient of two runs that follow each other.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_submit_bars(Harness& harness);   // submit.cu: host time of a call, compared with the raw CUDA call
void add_plan_bars(Harness& harness);     // plan.cu: a captured plan, compared with a CUDA graph
void add_copy_bars(Harness& harness);     // copies.cu: pinned copies, compared with cudaMemcpyAsync
void add_overlap_bars(Harness& harness);  // overlap.cu: copy in, compute, copy out against the busiest engine
void add_trace_bars(Harness& harness);    // tracing.cu: the same work with and without a trace

}  // namespace slip::bench
