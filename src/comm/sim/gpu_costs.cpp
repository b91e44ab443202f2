#include "comm/sim/gpu_costs.hpp"

#include <algorithm>

#include "topo/document.hpp"

namespace slip::comm {
namespace {

// The columns are those of GpuCosts. hop_us: LL [N]; LL128 and Simple [T], between [N]'s 1.9 and 3.4 us of a step and
// the time of a chunk. Launch [T]: the time of all_reduce_perf for a few bytes, less [N]'s latencies of the steps.
// LL: 141 GB/s [N] on Hopper; 35 [T] on Ampere ([N] says 88). ll128_share [T]: [N] says 0.92, tables show 0.6 to 0.75.
// nvls_share: Hopper [T], where [N] says 0.85; Blackwell [N].
// Memory: [D].
constexpr GpuCosts kVolta{"Volta", 27, {0.6, 2.9, 8}, 35, 0.72, 0.95, 0.9, 0, 0, 900};
constexpr GpuCosts kAmpere{"Ampere", 27, {0.6, 2.9, 8}, 35, 0.72, 0.97, 0.92, 0, 0, 2000};
constexpr GpuCosts kHopper{"Hopper", 27, {0.6, 1.9, 6}, 141, 0.72, 0.98, 0.92, 58, 0.84, 3350};
constexpr GpuCosts kBlackwell{"Blackwell", 27, {0.6, 1.9, 5}, 282, 0.72, 0.98, 0.92, 50, 0.74, 8000};
constexpr GpuCosts kMi200{"MI200", 6, {0.8, 1.6, 5.5}, 44, 0.72, 0.9, 0.9, 0, 0, 3200};
constexpr GpuCosts kMi300{"MI300", 5, {0.6, 1.3, 4.3}, 88, 0.72, 0.945, 0.9, 0, 0, 5300};

// The columns are those of NetworkCosts. InfiniBand and RoCE: latency [N], the rest [T]. EFA: [T]; its plug-in states
// 75 us. TCPXO (GPUDirect over TCP with offload): [T]. Neither keeps the order of writes, so there is no LL128 on them.
// EFA of the Hopper generation and later writes in order ([P]: the plug-in asks for it, and states 35 us for P5en and
// later); no published table was available to fit it. message_us [N].
//   [P]  aws-ofi-nccl, src/platform-aws.cpp.
constexpr NetworkCosts kNetworks[] = {{"ib", 5, 1.5, 6.5, 32, 1, 1},
                                      {"efa", 64, 0, 6.5, 32, 0.94, 2},
                                      {"efa2", 35, 1.5, 6.5, 32, 0.94, 2},
                                      {"tcpxo", 50, 0, 6.5, 32, 1, 2}};

constexpr int kAmazon = 0x1d0f, kGoogle = 0x1ae0;  // PCI vendors

const GpuCosts& by_arch(std::string_view arch) {
  return arch.starts_with("gfx94") || arch.starts_with("gfx95") ? kMi300 : kMi200;
}
const GpuCosts& by_sm(int sm) {
  if (sm >= 100) return kBlackwell;
  if (sm >= 90) return kHopper;
  return sm >= 80 || sm == 0 ? kAmpere : kVolta;
}

int oldest_sm(const TopoSystem& system) {
  int oldest = 0;
  for (const int device : system.devices) {
    const int sm = system.nodes[static_cast<std::size_t>(device)].sm;
    if (sm > 0 && (oldest == 0 || sm < oldest)) oldest = sm;
  }
  return oldest;
}

}  // namespace

const char* protocol_name(Protocol protocol) {
  constexpr const char* kNames[] = {"LL", "LL128", "Simple"};
  return kNames[static_cast<std::size_t>(protocol)];
}

const GpuCosts& gpu_costs(const TopoSystem& system) {
  const std::vector<std::string> archs = topo::facts_of(system).gpu_archs;
  return archs.empty() ? by_sm(oldest_sm(system)) : by_arch(*std::ranges::min_element(archs));
}

std::span<const NetworkCosts> networks() { return kNetworks; }

const NetworkCosts* find_network(std::string_view name) {
  const auto found = std::ranges::find_if(kNetworks, [&](const NetworkCosts& one) { return name == one.name; });
  return found == std::end(kNetworks) ? nullptr : &*found;
}

NetworkCosts network_costs(const TopoSystem& system) {
  const topo::MachineFacts facts = topo::facts_of(system);
  NetworkCosts costs = kNetworks[0];
  for (const int vendor : facts.nic_vendors) {
    if (vendor == kAmazon) costs = *find_network(oldest_sm(system) >= 90 ? "efa2" : "efa");
    if (vendor == kGoogle) costs = *find_network("tcpxo");
  }
  costs.latency_us = std::max(costs.latency_us, facts.net_latency_us);
  return costs;
}

}  // namespace slip::comm
