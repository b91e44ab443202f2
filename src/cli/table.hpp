// Table: rows of results. The same table is printed, aligned to the width of the terminal, and written by --json.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

#include "cli/text.hpp"
#include "slip/op.hpp"

namespace slip::cli {

// One cell of a table: what is printed, and the value behind it for --json.
struct Cell {
  using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string>;
  std::string text;
  Value value;
};

Cell word(std::string text);
Cell number(std::int64_t value);
Cell time(Picos value);
Cell bytes(std::uint64_t value);
Cell percent(double value);
Cell times(double factor);
Cell rate(double bytes_per_second);
Cell yes_no(bool value);
Cell result(bool ok);  // "ok" or "WRONG"
Cell none();           // "-"

// A column without a title is not printed, only part of --json.
struct Column {
  std::string title;
  std::string key;
};

class Table {
 public:
  Table(std::string title, std::vector<Column> columns) : title_(std::move(title)), columns_(std::move(columns)) {}
  void row(std::vector<Cell> cells);

  const std::string& title() const { return title_; }
  const std::vector<Column>& columns() const { return columns_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }
  // Where the columns do not fit the terminal, words are wrapped in their cells; where that is not enough, the other
  // columns follow in further tables that begin with the first column again.
  std::string text() const;

 private:
  std::string title_;
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

// One object a row, by the columns' keys; cells without a value are null.
nlohmann::ordered_json json_of(const Table& table);

}  // namespace slip::cli
