// The bars of this area, one function a file. All of them record both sides themselves (Bar::record), because what is
// judged is the difference or the quotient of two runs that follow each other.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_submit_bars(Harness& harness);   // submit.cu: what a call costs the host, beside the raw call
void add_plan_bars(Harness& harness);     // plan.cu: a captured plan beside a CUDA graph
void add_copy_bars(Harness& harness);     // copies.cu: pinned copies beside cudaMemcpyAsync
void add_overlap_bars(Harness& harness);  // overlap.cu: copy in, compute, copy out against the busiest engine
void add_trace_bars(Harness& harness);    // tracing.cu: the same work with and without a trace

}  // namespace slip::bench
