#include "cli/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace slip::cli {
namespace {

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell.value) || std::holds_alternative<double>(cell.value);
}

}  // namespace

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

std::string html_text(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') result += "&amp;";
    else if (c == '<') result += "&lt;";
    else if (c == '>') result += "&gt;";
    else if (c == '"') result += "&quot;";
    else result += c;
  }
  return result;
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
