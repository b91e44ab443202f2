#include "topo/rates.hpp"

#include <charconv>
#include <cmath>

namespace slip::topo {

std::optional<double> pci_gbps(std::string_view link_speed, int lanes) {
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

double nvlink_gbps(int sm) {
  if (sm >= 100) return 40.1;  // generation 5
  if (sm >= 90) return 20.6;
  if (sm == 86) return 12;  // GA102, bridges only
  if (sm >= 70) return 20;
  return 18;  // sm 60
}

double numa_gbps(const CpuModel& cpu) {
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
