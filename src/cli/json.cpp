#include "cli/json.hpp"

#include <utility>

namespace slip::cli {
namespace {

nlohmann::ordered_json json_of(const Cell::Value& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return *whole;
  if (const auto* real = std::get_if<double>(&value)) return *real;
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  return nullptr;
}

}  // namespace

nlohmann::ordered_json json_of(const Table& table) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : table.rows()) {
    auto object = nlohmann::ordered_json::object();
    for (std::size_t i = 0; i < row.size(); ++i) object[table.columns()[i].key] = json_of(row[i].value);
    rows.push_back(std::move(object));
  }
  return rows;
}

}  // namespace slip::cli
