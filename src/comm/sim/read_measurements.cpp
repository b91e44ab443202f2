// parse_measurements(): tables of measured times, as text of all_reduce_perf or as JSON.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "comm/sim/fit_costs.hpp"

namespace slip::comm {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxRows = 10'000;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kSpace = " \t\r";
  for (std::size_t at = line.find_first_not_of(kSpace); at != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kSpace, at), line.size());
    words.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kSpace, end);
  }
  return words;
}

// The columns of all_reduce_perf: size, count, type, redop, root, and the time out of place. Old versions have no root.
// So the column of the time is found in the heading. Without a heading it is kTimeColumn, or the one before it if the
// root would be a number with a point.
constexpr std::size_t kTimeColumn = 5, kMinColumns = 7;

// The column of the time, if the line is the heading; else `otherwise`.
std::size_t time_column(std::span<const std::string_view> words, std::size_t otherwise) {
  for (std::size_t first = 0; first < words.size(); ++first) {
    const bool heading =
        words[first] == "#size" || (words[first] == "size" && first > 0 && words[first - 1].ends_with('#'));
    if (!heading) continue;
    const auto time = std::ranges::find(words.subspan(first), "time");
    return time == words.end() ? otherwise : static_cast<std::size_t>(time - words.begin()) - first;
  }
  return otherwise;
}

bool is_number(std::string_view word) { return word.find_first_not_of("0123456789") == std::string_view::npos; }

// A row begins with the size, the count and the type. Launchers write the name of the rank before it: "[1,0]<stdout>:".
std::span<const std::string_view> row_of(std::span<const std::string_view> words) {
  for (std::size_t first = 0; first + kMinColumns <= words.size(); ++first) {
    const bool typed = std::isalpha(static_cast<unsigned char>(words[first + 2][0])) != 0;
    if (is_number(words[first]) && is_number(words[first + 1]) && typed) return words.subspan(first);
  }
  return {};
}

std::vector<Measurement> parse_text(std::string_view text, const std::string& file, Here here) {
  std::vector<Measurement> rows;
  int number = 0;
  std::size_t column = 0;  // 0: no heading was found
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> line = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    column = time_column(line, column);
    // Other lines are comments, headings, and what launchers and NCCL_DEBUG print.
    const std::span<const std::string_view> words = row_of(line);
    if (column == 0 && !words.empty())
      column = words[4].find('.') == std::string_view::npos ? kTimeColumn : kTimeColumn - 1;
    if (words.size() < std::max(kMinColumns, column + 1)) continue;
    const auto bytes = base::parse_number<double>(words[0], 0, 1e18);
    const auto us = base::parse_number<double>(words[column], 0, 1e15);
    if (!bytes || !us || *us <= 0)
      base::fail(Code::kParse, here, "'{}', line {}: column {} is '{}', but the time in us is expected there", file,
                 number, column + 1, words[column]);
    if (rows.size() >= kMaxRows) base::fail(Code::kParse, here, "'{}': more than {} rows", file, kMaxRows);
    if (*bytes > 0) rows.push_back({*bytes, *us});
  }
  return rows;
}

double number_of(const Json& value, const std::string& file, std::size_t row, const char* what, Here here) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number > 0) || !std::isfinite(number))
    base::fail(Code::kParse, here, "'{}', row {}: the {} must be a number of more than 0, not {}", file, row, what,
               value.dump().substr(0, 40));
  return number;
}

// The results in the JSON that all_reduce_perf writes itself. It has null out of place if that was not measured.
std::vector<Measurement> parse_results(const Json& json, const std::string& file, Here here) {
  if (!json.is_array() || json.size() > kMaxRows)
    base::fail(Code::kParse, here, "'{}': the results must be an array of at most {}", file, kMaxRows);
  std::vector<Measurement> rows;
  for (std::size_t number = 1; number <= json.size(); ++number) {
    const Json& row = json[number - 1];
    const auto measured = [&](const char* place) {
      return row.is_object() && row.contains("size") && row.contains(place) && row[place].is_object() &&
             row[place].contains("time");
    };
    const char* const place = measured("out_of_place") ? "out_of_place" : "in_place";
    if (!measured(place))
      base::fail(Code::kParse, here, "'{}', result {}: \"size\" and \"out_of_place\" with \"time\" are expected", file,
                 number);
    const bool empty = row["size"].is_number() && row["size"].get<double>() == 0;
    if (!empty)
      rows.push_back({number_of(row["size"], file, number, "size in bytes", here),
                      number_of(row[place]["time"], file, number, "time in us", here)});
  }
  return rows;
}

std::vector<Measurement> parse_rows(const Json& json, const std::string& file, Here here) {
  std::vector<Measurement> rows;
  if (!json.is_array() || json.size() > kMaxRows)
    base::fail(Code::kParse, here, "'{}': the rows must be an array of at most {}", file, kMaxRows);
  for (const Json& row : json) {
    const std::size_t number = rows.size() + 1;
    const bool pair = row.is_array() && row.size() == 2, named = row.is_object() && row.contains("bytes");
    if (!pair && !(named && row.contains("time_us")))
      base::fail(Code::kParse, here, "'{}', row {}: [bytes, us] or {{\"bytes\": .., \"time_us\": ..}} is expected",
                 file, number);
    const Json &bytes = pair ? row[0] : row["bytes"], &us = pair ? row[1] : row["time_us"];
    rows.push_back(
        {number_of(bytes, file, number, "size in bytes", here), number_of(us, file, number, "time in us", here)});
  }
  return rows;
}

bool is_table(const Json& json) { return json.is_object() && json.contains("rows"); }

std::vector<Measurement> parse_json(const Json& json, const std::string& file, std::string_view table, Here here) {
  if (is_table(json)) return parse_rows(json["rows"], file, here);
  if (json.is_object() && json.contains("results")) return parse_results(json["results"], file, here);
  if (!json.is_array() || json.empty() || !is_table(json[0])) return parse_rows(json, file, here);
  std::string names;
  for (const Json& one : json) {
    if (!is_table(one)) continue;
    const std::string name = one.contains("name") && one["name"].is_string() ? one["name"].get<std::string>() : "";
    if (name == table || json.size() == 1) return parse_rows(one["rows"], file, here);
    names += (names.empty() ? "" : ", ") + name;
  }
  base::fail(Code::kParse, here, "'{}' has several tables: choose one with --table: {}", file, names);
}

}  // namespace

std::vector<Measurement> parse_measurements(std::string_view text, const std::string& file, std::string_view table,
                                            Here here) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool may_be_json = first != std::string_view::npos && (text[first] == '[' || text[first] == '{');
  // Text may begin with a bracket, too: launchers write "[1,0]<stdout>:" before each line.
  const Json json = may_be_json ? Json::parse(text, nullptr, false) : Json(Json::value_t::discarded);
  std::vector<Measurement> rows =
      json.is_discarded() ? parse_text(text, file, here) : parse_json(json, file, table, here);
  if (rows.empty() && may_be_json && json.is_discarded())
    base::fail(Code::kParse, here, "'{}' is neither text of all_reduce_perf nor valid JSON", file);
  if (rows.empty())
    base::fail(Code::kParse, here, "'{}' has no rows of all_reduce_perf: size, count, type, redop, root, time, ...",
               file);
  return rows;
}

}  // namespace slip::comm
