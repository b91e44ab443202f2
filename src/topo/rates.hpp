// What links carry, in GB/s each way. Effective rates, as NCCL's topology search takes them: what transfers reach, not
// what the wire could.
#pragma once

#include <optional>
#include <string_view>

namespace slip::topo {

inline constexpr double kLocalGbps = 5000;      // within a device, or between a CPU and a NIC that is part of it
inline constexpr double kCoreGbps = 10;         // what one core copies
inline constexpr int kAssumedNetMbps = 10'000;  // of a port that does not say its speed

// PCI by the generation's transfers per second ("8.0 GT/s PCIe", "16 GT/s") and lanes. Empty text and 0 lanes stand for
// generation 3 and 16 lanes, as in virtual machines that do not say. Nothing: not a speed.
std::optional<double> pci_gbps(std::string_view link_speed, int lanes);

// One NVLink by the GPU's compute capability (80 for 8.0).
double nvlink_gbps(int sm);

// Between two NUMA nodes of a machine.
struct CpuModel {
  std::string_view arch, vendor;
  int family = 0, model = 0;
};
double numa_gbps(const CpuModel& cpu);

}  // namespace slip::topo
