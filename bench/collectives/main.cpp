// `make bench ONLY=collectives`: the cost of communicators and streams, the reduction kernels, the network transport,
// and several network interfaces. bench/collectives/run.sh also runs the peers (other libraries).
#include "bars.hpp"

int main(int argc, char** argv) {
  if (slip::bench::is_rails_rank(argc, argv)) return slip::bench::run_rails_rank(argc, argv);
  slip::bench::Harness harness;
  slip::bench::add_init_bars(harness);  // first: memory is counted while little was used
  slip::bench::add_enqueue_bars(harness);
  slip::bench::add_reduce_bars(harness);
  slip::bench::add_net_bars(harness);
  slip::bench::add_rails_bars(harness);
  return harness.run(argc, argv);
}
