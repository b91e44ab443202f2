// parse_measurements(): tables of measured times, as text of all_reduce_perf or as JSON.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>

#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/quantity_text.hpp"
#include "comm/sim/fit_costs.hpp"

namespace slip::comm {
namespace {

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
      base::fail(ErrorCode::kParse, here, "'{}', line {}: column {} is '{}', but the time in us is expected there",
                 file, number, column + 1, words[column]);
    if (rows.size() >= kMaxRows) base::fail(ErrorCode::kParse, here, "'{}': more than {} rows", file, kMaxRows);
    if (*bytes > 0) rows.push_back({*bytes, *us});
  }
  return rows;
}

using base::Json;
using base::JsonFields;

constexpr double kMaxBytesOfCall = 1e18, kMaxUs = 1e15;

// A row of numbers: the bytes and the time in us.
Measurement measurement_of(const Json& bytes, const Json& us, const std::string& place, Here here) {
  const auto positive = [&](const Json& value, const char* what, double max) {
    const double number = value.is_number() ? value.get<double>() : -1;
    if (!(number > 0 && number <= max))
      base::refuse_json(place, value, fmt::format("{} of more than 0 and at most {:g} is expected", what, max), here);
    return number;
  };
  return {positive(bytes, "a size in bytes", kMaxBytesOfCall), positive(us, "a time in us", kMaxUs)};
}

// The results in the JSON that all_reduce_perf writes itself. They have other fields, too, which differ by version. The
// time out of place is null if it was not measured.
std::vector<Measurement> parse_results(JsonFields fields) {
  std::vector<Measurement> rows;
  for (JsonFields& row : fields.objects("results", kMaxRows)) {
    const double bytes = row.real("size", 0, kMaxBytesOfCall);
    JsonFields times = row.object(row.has("out_of_place") ? "out_of_place" : "in_place");
    const double us = times.real("time", 0, kMaxUs);
    if (us <= 0) times.refuse("time", us, "a time in us of more than 0 is expected");
    if (bytes > 0) rows.push_back({bytes, us});
  }
  return rows;
}

// Rows of [bytes, us], or of {"bytes": .., "time_us": ..}.
std::vector<Measurement> parse_rows(const Json& json, const std::string& place, Here here) {
  std::vector<Measurement> rows;
  if (!json.is_array() || json.size() > kMaxRows)
    base::refuse_json(place, json, fmt::format("a list of at most {} rows is expected", kMaxRows), here);
  for (const Json& row : json) {
    const std::string path_of_row = fmt::format("{}[{}]", place, rows.size());
    if (row.is_array() && row.size() == 2) {
      rows.push_back(measurement_of(row[0], row[1], path_of_row, here));
    } else if (row.is_object()) {
      JsonFields fields(row, path_of_row, here);
      const Json &bytes = fields.raw("bytes"), &us = fields.raw("time_us");
      rows.push_back(measurement_of(bytes, us, path_of_row, here));
      fields.finish();
    } else {
      base::refuse_json(path_of_row, row, "[bytes, us] or {\"bytes\": .., \"time_us\": ..} is expected", here);
    }
  }
  return rows;
}

// A table: {"name": .., "rows": ..}, and texts that say where it is from and what was measured.
struct NamedRows {
  std::string name;
  const Json* rows = nullptr;
};
NamedRows read_table(JsonFields& fields) {
  NamedRows result;
  for (const char* key : {"machine", "source", "file", "network"}) {
    if (fields.has(key)) fields.text(key);
  }
  if (fields.has("nodes")) fields.number("nodes");
  if (fields.has("name")) result.name = fields.text("name");
  result.rows = &fields.raw("rows");
  fields.finish();
  return result;
}

bool is_table(const Json& json) { return json.is_object() && json.contains("rows"); }

std::vector<Measurement> parse_tables(const Json& json, const std::string& file, std::string_view table, Here here) {
  if (json.is_object() && json.contains("results")) return parse_results(JsonFields(json, file, here));
  if (json.is_object()) {
    JsonFields fields(json, file, here);
    return parse_rows(*read_table(fields).rows, fields.path_of("rows"), here);
  }
  if (!json.is_array() || json.empty() || !is_table(json[0])) return parse_rows(json, file, here);
  std::string names;
  for (std::size_t i = 0; i < json.size(); ++i) {
    JsonFields fields(json[i], fmt::format("{}[{}]", file, i), here);
    const NamedRows one = read_table(fields);
    if (one.name == table || json.size() == 1) return parse_rows(*one.rows, fields.path_of("rows"), here);
    names += (names.empty() ? "" : ", ") + one.name;
  }
  base::fail(ErrorCode::kParse, here, "'{}' has several tables: choose one with --table: {}", file, names);
}

}  // namespace

std::vector<Measurement> parse_measurements(std::string_view text, const std::string& file, std::string_view table,
                                            Here here) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool may_be_json = first != std::string_view::npos && (text[first] == '[' || text[first] == '{');
  // Text may begin with a bracket, too: launchers write "[1,0]<stdout>:" before each line.
  const bool is_json = may_be_json && Json::accept(text);
  std::vector<Measurement> rows = is_json
                                      ? parse_tables(base::parse_json(text, file, text.size(), here), file, table, here)
                                      : parse_text(text, file, here);
  if (rows.empty() && may_be_json && !is_json)
    base::fail(ErrorCode::kParse, here, "'{}' is neither text of all_reduce_perf nor valid JSON", file);
  if (rows.empty())
    base::fail(ErrorCode::kParse, here,
               "'{}' has no rows of all_reduce_perf: size, count, type, redop, root, time, ...", file);
  return rows;
}

}  // namespace slip::comm
