// The constants of the model in cost_model.hpp: the costs of a collective on a generation of GPUs and over a kind of
// network. The rates of the links are not among them: they come from the topology.
//
// Where the numbers come from:
//   [N]  the tuning constants that NCCL 2.28 publishes in src/graph/tuning.cc: latencies of the protocols, the share of
//        LL128, the efficiency of NVLS, the cost of posting a message to a NIC;
//   [R]  RCCL's rate of an xGMI link and its 48 GB/s for gfx94x, src/graph/topo.h;
//   [T]  a fit by hand to published all_reduce_perf tables (bench/predict/tables.cpp names each). Every such constant
//        serves all tables of its generation or network; none belongs to one machine;
//   [D]  the vendor's data sheet.
// `slip topo --fit` adapts them to measurements of one machine, by factors (CostFactors).
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "slip/topology.hpp"

namespace slip::comm {

// How the GPUs of two ranks hand data over. LL: each 8 bytes carry 4 bytes of data and a flag. LL128: each 128 bytes
// carry 120 bytes and a flag; it needs a network that keeps the order of writes. Simple: whole chunks, then a flag.
enum class Protocol : unsigned char { kLl, kLl128, kSimple };
inline constexpr std::size_t kProtocols = 3;
inline constexpr std::array<Protocol, kProtocols> kAllProtocols = {Protocol::kLl, Protocol::kLl128, Protocol::kSimple};
const char* protocol_name(Protocol protocol);  // "LL128"

using ByProtocol = std::array<double, kProtocols>;

// One generation of GPUs. Times are in microseconds, rates in GB/s.
struct GpuCosts {
  const char* name;
  double launch_us;    // launch of the kernel until the first byte leaves, and from the last byte until it has ended
  ByProtocol hop_us;   // one step from GPU to GPU over NVLink or xGMI
  double ll_bus_gbps;  // bus bandwidth that LL reaches within a machine
  double ll128_share;  // of the rate of Simple
  double ring_share;   // of the planned rate that rings reach with Simple
  double tree_share;   // the same for trees
  double nvls_us;      // added latency of a reduction in the NVSwitch; 0: the generation has none
  double nvls_share;   // of the rate of the links to the NVSwitch
  double memory_gbps;  // of a GPU's memory
};
// By the GPUs of the machine: the oldest generation counts. Cores and unknown GPUs: the constants of Ampere.
const GpuCosts& gpu_costs(const TopoSystem& system);

struct NetworkCosts {
  const char* name;         // as --network names it
  double latency_us;        // one message with LL
  double ll128_latencies;   // latencies that a step with LL128 takes; 0: LL128 is not used on this network
  double simple_latencies;  // the same with Simple: credit, data and flush, of several slices
  double ll_bus_gbps;       // bus bandwidth that LL reaches through the CPU's memory
  double rate_share;        // of the planned rate, beyond ring_share and tree_share
  double message_us;        // time of a NIC's proxy for each message
};
std::span<const NetworkCosts> networks();
const NetworkCosts* find_network(std::string_view name);  // null: unknown
// By the PCI vendor of the NICs; InfiniBand's if it is unknown. If the topology file states a higher latency, the
// result has that latency.
NetworkCosts network_costs(const TopoSystem& system);

// Factors of hop_us for a step that goes through PCI switches or CPUs instead of NVLink [N].
inline constexpr ByProtocol kPciHopFactor = {1.7, 1.4, 1.5};

// The factors that `slip topo --fit` finds: of all latencies, and of all rates, of each protocol.
struct CostFactors {
  ByProtocol latency = {1, 1, 1}, rate = {1, 1, 1};
};

}  // namespace slip::comm
