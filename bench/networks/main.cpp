// `make bench ONLY=networks`: the UCX transport compared with ucx_perftest and with Slipstream's TCP transport, and the
// cost of NCCL's plug-in interface.
#include <string_view>

#include "bars.hpp"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == slip::bench::kPeerWord) return slip::bench::run_peer(argc, argv);
  slip::bench::Harness harness;
  slip::bench::add_plugin_bars(harness);
  slip::bench::add_ucx_bars(harness);
  return harness.run(argc, argv);
}
