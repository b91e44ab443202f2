// `make bench ONLY=collectives`: what communicators cost, the arithmetic of collectives, and the network below them.
// bench/collectives/run.sh runs the peers, too.
#include "bars.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_init_bars(harness);  // first: memory is counted while little was used
  slip::bench::add_reduce_bars(harness);
  slip::bench::add_net_bars(harness);
  return harness.run(argc, argv);
}
