#include "backend/sim/quantity.hpp"

#include <fmt/format.h>

#include <limits>
#include <span>

#include "backend/sim/arithmetic.hpp"

namespace slip::sim {
namespace {

struct Unit {
  std::string_view name;
  std::uint64_t size;
};

// write_quantity() needs the decimal units first, from small to large. Then follow the binary units, for reading only.
constexpr Unit kBytes[] = {{"B", 1},
                           {"KB", 1'000},
                           {"MB", 1'000'000},
                           {"GB", 1'000'000'000},
                           {"TB", 1'000'000'000'000},
                           {"PB", 1'000'000'000'000'000},
                           {"KiB", std::uint64_t{1} << 10},
                           {"MiB", std::uint64_t{1} << 20},
                           {"GiB", std::uint64_t{1} << 30},
                           {"TiB", std::uint64_t{1} << 40}};
constexpr Unit kFlops[] = {{"FLOP", 1},
                           {"KFLOP", 1'000},
                           {"MFLOP", 1'000'000},
                           {"GFLOP", 1'000'000'000},
                           {"TFLOP", 1'000'000'000'000},
                           {"PFLOP", 1'000'000'000'000'000},
                           {"EFLOP", 1'000'000'000'000'000'000}};
constexpr Unit kTimes[] = {{"ps", 1}, {"ns", 1'000}, {"us", 1'000'000}, {"ms", 1'000'000'000}, {"s", kSecond}};

struct Scale {
  std::span<const Unit> units;
  std::size_t decimal;  // number of decimal units
  bool per_second;
  const char* example;
};

Scale scale_of(Dimension dimension) {
  switch (dimension) {
    case Dimension::kBytes: return {kBytes, 6, false, "141 GB"};
    case Dimension::kBytesPerSecond: return {kBytes, 6, true, "55.4 GB/s"};
    case Dimension::kFlops: return {kFlops, std::size(kFlops), true, "787 TFLOP/s"};
    case Dimension::kTime: return {kTimes, std::size(kTimes), false, "3.9 us"};
  }
  return {};
}

// "55.4" has digits 554 and divisor 10. Returns nullopt if the text is no number or has more than 18 digits.
struct Decimal {
  std::uint64_t digits = 0;
  std::uint64_t divisor = 1;
};
std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal result;
  bool point = false;
  std::size_t count = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !point && i > 0 && i + 1 < text.size()) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9' || ++count > 18) return std::nullopt;
    result.digits = result.digits * 10 + static_cast<std::uint64_t>(c - '0');
    if (point) result.divisor *= 10;
  }
  return count > 0 ? std::optional(result) : std::nullopt;
}

}  // namespace

std::optional<std::uint64_t> parse_quantity(std::string_view text, Dimension dimension) {
  const Scale scale = scale_of(dimension);
  const std::size_t space = text.find(' ');
  if (space == std::string_view::npos) return std::nullopt;
  const std::optional<Decimal> number = parse_decimal(text.substr(0, space));
  std::string_view name = text.substr(space + 1);
  if (!number) return std::nullopt;
  if (scale.per_second) {
    if (!name.ends_with("/s")) return std::nullopt;
    name.remove_suffix(2);
  }
  for (const Unit& unit : scale.units) {
    if (unit.name != name) continue;
    const U128 product = U128{number->digits} * unit.size;
    if (product % number->divisor != 0) return std::nullopt;
    const U128 value = product / number->divisor;
    if (value > std::numeric_limits<std::uint64_t>::max()) return std::nullopt;
    return static_cast<std::uint64_t>(value);
  }
  return std::nullopt;
}

std::string write_quantity(std::uint64_t value, Dimension dimension) {
  const Scale scale = scale_of(dimension);
  std::size_t best = 0;
  for (std::size_t i = 1; i < scale.decimal && value != 0; ++i) {
    if (value % scale.units[i].size == 0) best = i;
  }
  const Unit& unit = scale.units[best];
  return fmt::format("{} {}{}", value / unit.size, unit.name, scale.per_second ? "/s" : "");
}

const char* example_of(Dimension dimension) { return scale_of(dimension).example; }

}  // namespace slip::sim
