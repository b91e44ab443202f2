#include "base/quantity_text.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace slip {
namespace {

struct Unit {
  const char* name;
  double size;
};

std::string scaled(double value, const Unit* units, std::size_t count) {
  std::size_t i = 0;
  while (i + 1 < count && std::abs(value) < units[i].size) ++i;
  const double shown = value / units[i].size;
  const int decimals = shown == 0 || std::abs(shown) >= 99.95 ? 0 : std::abs(shown) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", shown, decimals, units[i].name);
}

template <std::size_t N>
std::string scaled(double value, const std::array<Unit, N>& units) {
  return scaled(value, units.data(), N);
}

constexpr std::array kTimes = {Unit{"s", 1e12}, Unit{"ms", 1e9}, Unit{"us", 1e6}, Unit{"ns", 1e3}};
constexpr std::array kRates = {Unit{"TB/s", 1e12}, Unit{"GB/s", 1e9}, Unit{"MB/s", 1e6}};
constexpr std::array kFlops = {Unit{"TFLOP/s", 1e12}, Unit{"GFLOP/s", 1e9}, Unit{"MFLOP/s", 1e6}};
constexpr std::array<std::pair<const char*, std::uint64_t>, 4> kBytes = {
    {{"GiB", 1ULL << 30}, {"MiB", 1ULL << 20}, {"KiB", 1ULL << 10}, {"B", 1}}};

}  // namespace

std::string format_time(Picos time) { return scaled(static_cast<double>(time), kTimes); }
std::string format_rate(double bytes_per_second) { return scaled(bytes_per_second, kRates); }
std::string format_flops(double flops_per_second) { return scaled(flops_per_second, kFlops); }
std::string format_percent(double percent) { return fmt::format("{:.1f} %", percent); }
std::string format_times(double factor) { return fmt::format("{:.2f}x", factor); }

std::string format_bytes(std::uint64_t bytes) {
  for (const auto& [name, size] : kBytes) {
    if (bytes < size && size > 1) continue;
    if (bytes % size == 0) return fmt::format("{} {}", bytes / size, name);
    return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(size), name);
  }
  return {};
}

bool parse_bytes(std::string_view text, std::uint64_t& bytes) {
  static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 11> kUnits = {{{"", 1},
                                                                                         {"B", 1},
                                                                                         {"K", 1ULL << 10},
                                                                                         {"KiB", 1ULL << 10},
                                                                                         {"M", 1ULL << 20},
                                                                                         {"MiB", 1ULL << 20},
                                                                                         {"G", 1ULL << 30},
                                                                                         {"GiB", 1ULL << 30},
                                                                                         {"KB", 1'000},
                                                                                         {"MB", 1'000'000},
                                                                                         {"GB", 1'000'000'000}}};
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return false;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, size] : kUnits) {
    if (unit != name) continue;
    if (count > UINT64_MAX / size) return false;
    bytes = count * size;
    return true;
  }
  return false;
}

}  // namespace slip
