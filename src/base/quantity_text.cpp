#include "base/quantity_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

namespace slip::base {
namespace {

struct Unit {
  const char* name;
  double size;
};

std::string scaled(double value, std::span<const Unit> units) {
  std::size_t i = 0;
  while (i + 1 < units.size() && std::abs(value) < units[i].size) ++i;
  const double shown = value / units[i].size;
  const int decimals = shown == 0 || std::abs(shown) >= 99.95 ? 0 : std::abs(shown) >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", shown, decimals, units[i].name);
}

constexpr Unit kTimes[] = {{"s", 1e12}, {"ms", 1e9}, {"us", 1e6}, {"ns", 1e3}};
constexpr Unit kRates[] = {{"TB/s", 1e12}, {"GB/s", 1e9}, {"MB/s", 1e6}};
constexpr Unit kFlops[] = {{"TFLOP/s", 1e12}, {"GFLOP/s", 1e9}, {"MFLOP/s", 1e6}};

struct ByteUnit {
  std::string_view name;
  std::uint64_t size;
};
constexpr ByteUnit kShownBytes[] = {{"GiB", kGibi}, {"MiB", kMebi}, {"KiB", kKibi}, {"B", 1}};
constexpr ByteUnit kTypedBytes[] = {{"", 1},       {"B", 1},       {"K", kKibi}, {"KiB", kKibi},
                                    {"M", kMebi},  {"MiB", kMebi}, {"G", kGibi}, {"GiB", kGibi},
                                    {"KB", kKilo}, {"MB", kMega},  {"GB", kGiga}};

}  // namespace

std::string format_time(Picos time) { return scaled(static_cast<double>(time), kTimes); }
std::string format_rate(double bytes_per_second) { return scaled(bytes_per_second, kRates); }
std::string format_flops(double flops_per_second) { return scaled(flops_per_second, kFlops); }
std::string format_percent(double percent) { return fmt::format("{:.1f} %", percent); }
std::string format_times(double factor) { return fmt::format("{:.2f}x", factor); }

std::string format_bytes(std::uint64_t bytes) {
  for (const auto& [name, size] : kShownBytes) {
    if (bytes < size && size > 1) continue;
    if (bytes % size == 0) return fmt::format("{} {}", bytes / size, name);
    return fmt::format("{:.1f} {}", static_cast<double>(bytes) / static_cast<double>(size), name);
  }
  return {};
}

std::vector<std::string_view> split(std::string_view list, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find_first_of(separators, at), list.size());
    parts.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool parse_bytes(std::string_view text, std::uint64_t& bytes) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc()) return false;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, size] : kTypedBytes) {
    if (unit != name) continue;
    if (count > UINT64_MAX / size) return false;
    bytes = count * size;
    return true;
  }
  return false;
}

}  // namespace slip::base
