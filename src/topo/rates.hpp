// The rates of links in GB/s (bytes, not bits), in each direction. These are effective rates, as in NCCL's topology
// search: the rates that transfers reach, not the line rates. The topology reader and the probe use them.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace slip::topo {

inline constexpr double kLocalGbps = 5000;      // within a device, or between a CPU and a NIC that is part of it
inline constexpr double kCoreGbps = 10;         // the rate at which one core copies
inline constexpr int kAssumedNetMbps = 10'000;  // of a port whose speed is unknown

// The rate of a PCI link, from the transfers per second of its generation ("8.0 GT/s PCIe", "16 GT/s") and its lanes.
// An empty or unknown text means generation 3, and 0 lanes mean 16, because virtual machines hide both. Linux writes
// "Unknown" or "Unknown speed". Returns nothing if the text is not a speed.
inline std::optional<double> pci_gbps(std::string_view link_speed, int lanes) {
  double transfers = 8;
  if (!link_speed.empty() && !link_speed.starts_with("Unknown")) {
    const auto [end, error] = std::from_chars(link_speed.data(), link_speed.data() + link_speed.size(), transfers);
    const std::string_view unit = link_speed.substr(static_cast<std::size_t>(end - link_speed.data()));
    // The text after the unit is ignored: " PCIe" of the Linux kernel, " PCIe/s" in files of cloud providers.
    const bool known = unit.starts_with(" GT/s") || unit.starts_with("GT/s");
    if (error != std::errc() || !known || !(transfers >= 0.1 && transfers <= 512)) return std::nullopt;
  }
  // In large transfers three quarters of the bits are payload: 12 GB/s for generation 3 with 16 lanes, 24 GB/s for
  // generation 4. The line code and packet headers take the rest.
  return transfers * (lanes == 0 ? 16 : lanes) / 8 * 0.75;
}

// The rate of one NVLink, by the compute capability of the GPU (80 means 8.0).
inline double nvlink_gbps(int sm) {
  if (sm >= 100) return 40.1;  // generation 5
  if (sm >= 90) return 20.6;
  if (sm == 86) return 12;  // GA102, bridges only
  if (sm >= 70) return 20;
  return 18;  // sm 60
}

// The rate of one xGMI link, by the architecture of the GPU ("gfx942"), as in RCCL's src/graph/topo.h. Old versions of
// RCCL write 910 for gfx90a.
inline double xgmi_gbps(std::string_view arch) {
  if (arch.starts_with("gfx94") || arch.starts_with("gfx95")) return 48;  // MI300
  if (arch.starts_with("gfx90a") || arch == "910") return 36;             // MI200
  return 24;                                                              // MI50 to MI100
}

// The model of a machine's CPUs. numa_gbps(): the rate of the link between two of its NUMA nodes.
struct CpuModel {
  std::string_view arch, vendor;
  int family = 0, model = 0;
};
inline double numa_gbps(const CpuModel& cpu) {
  if (cpu.arch == "ppc64") return 32;  // POWER9, X bus
  if (cpu.arch == "arm64" || cpu.arch == "aarch64") return 6;
  if (cpu.vendor == "AuthenticAMD") return 16;
  if (cpu.vendor == "GenuineIntel" && cpu.family == 6) {
    if (cpu.model >= 0xCF) return 40;  // Emerald Rapids
    if (cpu.model >= 0x8F) return 22;  // Sapphire Rapids
    if (cpu.model >= 0x55) return 10;  // Skylake
  }
  return 6;  // QPI of Broadwell, and all others
}

}  // namespace slip::topo
