// `make bench ONLY=collectives`: the cost of communicators and streams, the reduction kernels, and the network
// transport. bench/collectives/run.sh also runs the peers (other libraries).
#include "bars.hpp"

int main(int argc, char** argv) {
  slip::bench::Harness harness;
  slip::bench::add_init_bars(harness);  // first: memory is counted while little was used
  slip::bench::add_enqueue_bars(harness);
  slip::bench::add_reduce_bars(harness);
  slip::bench::add_net_bars(harness);
  return harness.run(argc, argv);
}
