// What links carry, in GB/s each way. Effective rates, as NCCL's topology search takes them: what transfers reach, not
// what the wire could.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace slip::topo {

inline constexpr double kLocalGbps = 5000;      // within a device, or between a CPU and a NIC that is part of it
inline constexpr double kCoreGbps = 10;         // what one core copies
inline constexpr int kAssumedNetMbps = 10'000;  // of a port that does not say its speed

// PCI by the generation's transfers per second ("8.0 GT/s PCIe", "16 GT/s") and lanes. Empty text and 0 lanes stand for
// generation 3 and 16 lanes, as in virtual machines that do not say. Nothing: not a speed.
inline std::optional<double> pci_gbps(std::string_view link_speed, int lanes) {
  double transfers = 8;
  if (!link_speed.empty() && link_speed != "Unknown") {
    const auto [end, error] = std::from_chars(link_speed.data(), link_speed.data() + link_speed.size(), transfers);
    const std::string_view unit = link_speed.substr(static_cast<std::size_t>(end - link_speed.data()));
    if (error != std::errc() || (unit != " GT/s" && unit != " GT/s PCIe") || !(transfers >= 0.1 && transfers <= 512))
      return std::nullopt;
  }
  // Three quarters of the bits are payload where transfers are large: 12 GB/s of generation 3 with 16 lanes, 24 of
  // generation 4. Line code and packet headers take the rest.
  return transfers * (lanes == 0 ? 16 : lanes) / 8 * 0.75;
}

// One NVLink by the GPU's compute capability (80 for 8.0).
inline double nvlink_gbps(int sm) {
  if (sm >= 100) return 40.1;  // generation 5
  if (sm >= 90) return 20.6;
  if (sm == 86) return 12;  // GA102, bridges only
  if (sm >= 70) return 20;
  return 18;  // sm 60
}

// Between two NUMA nodes of a machine.
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
  return 6;  // QPI of Broadwell and whatever else
}

}  // namespace slip::topo
