// The parts of the collectives benchmark; main.cpp adds them to the harness.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_reduce_bars(Harness& harness);
void add_net_bars(Harness& harness);
void add_enqueue_bars(Harness& harness);
void add_init_bars(Harness& harness);
void add_rails_bars(Harness& harness);

// A rank of the benchmark of several network interfaces, which this program starts as a process of its own.
bool is_rails_rank(int argc, char** argv);
int run_rails_rank(int argc, char** argv);

}  // namespace slip::bench
