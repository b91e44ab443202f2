#include "cli/text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/terminal.hpp"
#include "cli/terminal.hpp"

namespace slip::cli {

std::string paragraph(std::string_view text, std::size_t indent, std::string_view first) {
  const std::size_t columns = std::min(kColumns, terminal_columns(kColumns));
  const std::string margin(indent, ' ');
  std::string line(first.empty() ? margin : std::string(first));
  std::string result;
  bool empty = true;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    const std::string_view next = text.substr(0, space);
    text.remove_prefix(std::min(space + 1, text.size()));
    if (!empty && line.size() + 1 + next.size() > columns) {
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
  for (Cell& cell : cells) cell.text = terminal_text(cell.text);  // before widths are taken
  rows_.push_back(std::move(cells));
}

}  // namespace slip::cli
