// The parts of the collectives benchmark; main.cpp adds them to the harness.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_reduce_bars(Harness& harness);
void add_net_bars(Harness& harness);
void add_enqueue_bars(Harness& harness);
void add_init_bars(Harness& harness);

}  // namespace slip::bench
