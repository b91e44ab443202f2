// The groups of bars of bench_gradients.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_sim_bars(Harness& harness);
void add_host_bars(Harness& harness);
void add_link_bars(Harness& harness);

// A rank of the bar over a slow link: this program, started again in a namespace.
bool is_link_rank(int argc, char** argv);
int run_link_rank(int argc, char** argv);

}  // namespace slip::bench
