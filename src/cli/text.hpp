// Text for the terminal: output without escape sequences of others, paragraphs that fit its width, and Table, rows of
// results. The same table is printed, aligned to the width of the terminal, and written by --json. Files that include
// this header use fmt through it.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/quantity_text.hpp"
#include "slip/op.hpp"

namespace slip::cli {

// After this call all text printed to `stdout` passes through terminal_text(), which escapes control characters. Data
// written by OutputFile do not.
void escape_standard_output();

// Width of the terminal, at least 40 columns. `otherwise` if the standard output is no terminal, so that files look the
// same everywhere.
std::size_t terminal_columns(std::size_t otherwise);

// Breaks the text into lines of at most 100 columns, or of the terminal's width. Lines are indented by `indent` spaces;
// the first one starts with `first` instead.
std::string paragraph(std::string_view text, std::size_t indent = 0, std::string_view first = {});

std::string counted(std::size_t count, const std::string& what);  // "8 GPUs", "1 net"

// Escapes &, <, > and quotes for HTML and SVG.
std::string html_text(std::string_view text);

// Text that is formatted line by line: the base of pictures in SVG.
class Lines {
 protected:
  static constexpr const char* kColours[] = {"#2563eb", "#ea580c", "#059669", "#9333ea", "#db2777", "#0891b2"};

  // The lines as an SVG picture of this size on a white background.
  std::string svg(double width, double height) const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
        width, height, out_);
  }
  template <class... Values>
  void put(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
    out_ += '\n';
  }
  std::string out_;
};

// One cell: the printed text, and its value for --json.
struct Cell {
  using Value = std::variant<std::nullptr_t, bool, std::int64_t, double, std::string>;
  std::string text;
  Value value;
};

Cell word(std::string text);
template <std::integral Integer>
Cell number(Integer value) {
  return {std::to_string(value), static_cast<std::int64_t>(value)};
}
Cell time(Picos value);
Cell bytes(std::uint64_t value);
Cell percent(double value);
Cell times(double factor);
Cell rate(double bytes_per_second);
Cell yes_no(bool value);
Cell result(bool ok);  // "ok" or "WRONG"
Cell none();           // "-"

// A column without a title appears in --json only.
struct Column {
  std::string title;
  std::string key;
};

class Table {
 public:
  // Columns: "time=time_ps" has the title "time" and the key "time_ps"; in "ops" both are the same.
  Table(std::string title, const std::vector<std::string>& columns);
  void row(std::vector<Cell> cells);

  const std::string& title() const { return title_; }
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }
  // If the columns do not fit the terminal, text is wrapped within its cells. If that is not enough, the remaining
  // columns follow in further tables, each of which repeats the first column.
  std::string text() const;

 private:
  std::string title_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

using Json = nlohmann::ordered_json;

// An array with one object per row, by column key. Cells without a value are null.
Json json_of(const Table& table);
// Writes the data of --json, with bytes that are no UTF-8 replaced. Does nothing if the path is empty.
void write_json(const std::string& path, const Json& json);

}  // namespace slip::cli
