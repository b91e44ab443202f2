#include "cli/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace slip::cli {
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

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell.value) || std::holds_alternative<double>(cell.value);
}

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

std::string paragraph(std::string_view text, std::size_t indent, std::string_view first) {
  const std::string margin(indent, ' ');
  std::string line(first.empty() ? margin : std::string(first));
  std::string result;
  bool empty = true;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view next = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (!empty && line.size() + 1 + next.size() > kColumns) {
      result += line + '\n';
      line = margin;
      empty = true;
    }
    if (!empty) line += ' ';
    line += next;
    empty = false;
  }
  return result + line + '\n';
}

Cell word(std::string text) { return {text, text}; }
Cell number(std::int64_t value) { return {fmt::format("{}", value), value}; }
Cell time(Picos value) { return {format_time(value), std::int64_t{value}}; }
Cell bytes(std::uint64_t value) { return {format_bytes(value), static_cast<std::int64_t>(value)}; }
Cell percent(double value) { return {format_percent(value), value}; }
Cell times(double factor) { return {format_times(factor), factor}; }
Cell rate(double bytes_per_second) { return {format_rate(bytes_per_second), bytes_per_second}; }
Cell yes_no(bool value) { return {value ? "yes" : "no", value}; }
Cell result(bool ok) { return {ok ? "ok" : "WRONG", ok}; }
Cell none() { return {"-", {}}; }

void Table::row(std::vector<Cell> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  struct Shown {
    std::size_t index, width;
    bool right;
  };
  std::vector<Shown> shown;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].title.empty()) continue;
    Shown column{i, columns_[i].title.size(), false};
    for (const auto& row : rows_) {
      column.width = std::max(column.width, row[i].text.size());
      column.right |= is_number(row[i]);
    }
    shown.push_back(column);
  }
  const auto line = [&](auto&& cell) {
    std::string out = " ";
    for (const Shown& column : shown)
      out += column.right ? fmt::format(" {:>{}} ", cell(column.index), column.width)
                          : fmt::format(" {:<{}} ", cell(column.index), column.width);
    out.erase(out.find_last_not_of(' ') + 1);
    return out + '\n';
  };
  std::string text = title_.empty() ? "" : fmt::format("  {}\n", title_);
  text += line([&](std::size_t i) { return std::string_view(columns_[i].title); });
  std::size_t width = 0;
  for (const Shown& column : shown) width += column.width + 2;
  text += "  " + std::string(width - 2, '-') + '\n';
  for (const auto& row : rows_) text += line([&](std::size_t i) { return std::string_view(row[i].text); });
  return text;
}

}  // namespace slip::cli
