#include "cli/text.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/output_file.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"

namespace slip::cli {
namespace {

// Number of bytes at the end that begin a UTF-8 character whose rest comes with the next write.
std::size_t cut_character(std::string_view text) {
  for (std::size_t bytes = 1; bytes <= std::min<std::size_t>(3, text.size()); ++bytes) {
    const auto first = static_cast<unsigned char>(text[text.size() - bytes]);
    if (first < 0x80) return 0;
    if (first < 0xC0) continue;
    const std::size_t whole = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    return bytes < whole ? bytes : 0;
  }
  return 0;
}

ssize_t write_escaped(void* cookie, const char* data, std::size_t size) {
  std::string& left = *static_cast<std::string*>(cookie);
  const std::string text = left + std::string(data, size);
  const std::size_t cut = cut_character(text);
  left = text.substr(text.size() - cut);
  const std::string escaped = base::terminal_text(std::string_view(text).substr(0, text.size() - cut));
  return base::write_all(STDOUT_FILENO, escaped) ? static_cast<ssize_t>(size) : 0;
}

constexpr std::size_t kColumns = 100;   // maximum width of a paragraph
constexpr std::size_t kNarrowest = 12;  // minimum width of a narrowed text column

struct Shown {
  std::size_t index, width;
  bool right;
};

bool is_number(const Cell& cell) {
  return std::holds_alternative<std::int64_t>(cell.value) || std::holds_alternative<double>(cell.value);
}

// Breaks lines between words, or within a word that is too long.
std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  while (text.size() > width) {
    std::size_t end = text.rfind(' ', width);
    if (end == std::string_view::npos || end == 0) end = width;
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), text[end] == ' ' ? end + 1 : end));
  }
  lines.emplace_back(text);
  return lines;
}

std::size_t width_of(const std::vector<Shown>& columns) {
  std::size_t width = 0;
  for (const Shown& column : columns) width += column.width + 2;
  return width;
}

// Narrows the widest text column first.
void narrow(std::vector<Shown>& columns, std::size_t room) {
  const std::vector<Shown> natural = columns;
  while (width_of(columns) > room) {
    Shown* widest = nullptr;
    for (Shown& column : columns) {
      if (!column.right && column.width > kNarrowest && (!widest || column.width > widest->width)) widest = &column;
    }
    if (!widest) {  // it will be split into several tables, where text columns may be wider
      for (std::size_t i = 0; i < columns.size(); ++i)
        columns[i].width = std::max(columns[i].width, std::min(natural[i].width, room / 3));
      return;
    }
    --widest->width;
  }
}

// Splits the columns into several tables that fit the width. Each table repeats the first column.
std::vector<std::vector<Shown>> split(const std::vector<Shown>& columns, std::size_t room) {
  std::vector<std::vector<Shown>> result;
  for (std::size_t i = 1; i < columns.size(); ++i) {
    if (result.empty() || width_of(result.back()) + columns[i].width + 2 > room) result.push_back({columns[0]});
    result.back().push_back(columns[i]);
  }
  if (result.empty()) result.push_back(columns);
  return result;
}

// One row; it has as many lines as its longest cell.
template <class Text>
std::string row_text(const std::vector<Shown>& columns, const Text& text_of) {
  std::vector<std::vector<std::string>> cells;
  std::size_t height = 1;
  for (const Shown& column : columns) {
    cells.push_back(wrapped(text_of(column.index), column.width));
    height = std::max(height, cells.back().size());
  }
  std::string out;
  for (std::size_t line = 0; line < height; ++line) {
    std::string one = " ";
    for (std::size_t i = 0; i < columns.size(); ++i) {
      const std::string text = line < cells[i].size() ? cells[i][line] : std::string();
      one += columns[i].right ? fmt::format(" {:>{}} ", text, columns[i].width)
                              : fmt::format(" {:<{}} ", text, columns[i].width);
    }
    one.erase(one.find_last_not_of(' ') + 1);
    out += one + '\n';
  }
  return out;
}

}  // namespace

void escape_standard_output() {
#ifdef __GLIBC__  // other C libraries cannot replace `stdout`
  static std::string left;
  std::FILE* escaped =
      ::fopencookie(&left, "w", {.read = nullptr, .write = write_escaped, .seek = nullptr, .close = nullptr});
  if (!escaped) return;
  if (::isatty(STDOUT_FILENO) != 0) std::setvbuf(escaped, nullptr, _IOLBF, BUFSIZ);
  std::fflush(stdout);
  stdout = escaped;
#endif
}

std::size_t terminal_columns(std::size_t otherwise) {
  constexpr std::size_t kMin = 40;
  struct winsize size {};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
    return otherwise;
  return std::max<std::size_t>(size.ws_col, kMin);
}

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

std::string counted(std::size_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
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

Table::Table(std::string title, const std::vector<std::string>& columns) : title_(std::move(title)) {
  for (const std::string& column : columns) {
    const std::size_t equals = column.find('=');
    columns_.push_back({column.substr(0, equals), column.substr(equals + 1)});  // without "=": all of it, from 0
  }
}

std::string Table::text() const {
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
  // In a file each row is one line of any length, because other programs read it.
  const std::size_t room = terminal_columns(std::numeric_limits<std::size_t>::max());
  narrow(shown, room);
  std::string text = title_.empty() ? "" : paragraph(title_, 2);
  const auto parts = split(shown, room);
  for (const std::vector<Shown>& columns : parts) {
    if (&columns != &parts.front()) text += '\n';
    text += row_text(columns, [&](std::size_t i) { return std::string_view(columns_[i].title); });
    text += "  " + std::string(width_of(columns) - 2, '-') + '\n';
    for (const auto& row : rows_)
      text += row_text(columns, [&](std::size_t i) { return std::string_view(row[i].text); });
  }
  return text;
}

Cell word(std::string text) { return {text, text}; }
Cell time(Picos value) { return {base::format_time(value), std::int64_t{value}}; }
Cell bytes(std::uint64_t value) { return {base::format_bytes(value), static_cast<std::int64_t>(value)}; }
Cell percent(double value) { return {base::format_percent(value), value}; }
Cell times(double factor) { return {base::format_times(factor), factor}; }
Cell rate(double bytes_per_second) { return {base::format_rate(bytes_per_second), bytes_per_second}; }
Cell yes_no(bool value) { return {value ? "yes" : "no", value}; }
Cell result(bool ok) { return {ok ? "ok" : "WRONG", ok}; }
Cell none() { return {"-", {}}; }

void Table::row(std::vector<Cell> cells) {
  cells.resize(columns_.size());
  for (Cell& cell : cells) cell.text = base::terminal_text(cell.text);  // before widths are computed
  rows_.push_back(std::move(cells));
}

Json json_of(const Table& table) {
  auto rows = Json::array();
  for (const auto& row : table.rows()) {
    auto object = Json::object();
    for (std::size_t i = 0; i < row.size(); ++i)
      object[table.columns()[i].key] = std::visit([](const auto& value) { return Json(value); }, row[i].value);
    rows.push_back(std::move(object));
  }
  return rows;
}

void write_json(const std::string& path, const Json& json) {
  if (!path.empty()) write_file(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace slip::cli
