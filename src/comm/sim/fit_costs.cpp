#include "comm/sim/fit_costs.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <map>

#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/quantity_text.hpp"

namespace slip::comm {
namespace {

// --- The fit ---

constexpr std::size_t kFactors = 2 * kProtocols;
using Point = std::array<double, kFactors>;  // logarithms of the factors: latencies first, then rates

// The weight of the penalty: a factor of e, or 1/e, adds this much to the loss, as an error of 2.7 % in every row
// would. A larger value gives worse fits. With a smaller value, factors that few rows depend on drift away from 1.
constexpr double kPenalty = 0.003;
constexpr int kSteps = 600, kRounds = 2;

CostFactors factors_at(const Point& point) {
  CostFactors factors;
  for (std::size_t i = 0; i < kProtocols; ++i) {
    factors.latency[i] = std::exp(point[i]);
    factors.rate[i] = std::exp(point[kProtocols + i]);
  }
  return factors;
}

// The measured time of each row, and the terms of the cost model, computed once: only the factors change during the
// search.
using Rows = std::vector<std::pair<double, std::vector<CollectiveModel::Term>>>;

// The mean over the rows, plus the penalty. Errors below 0.25 count by their square and larger ones by their amount, so
// that a single outlier does not determine the fit.
double loss_of(const Rows& rows, const Point& point) {
  const CostFactors factors = factors_at(point);
  double sum = 0, penalty = 0;
  for (const auto& [measured, terms] : rows) {
    double us = terms.front().us(factors);
    for (const CollectiveModel::Term& term : terms) us = std::min(us, term.us(factors));
    const double error = std::abs(std::log(us / measured));
    sum += std::min(error, 4 * error * error);
  }
  for (const double each : point) penalty += each * each;
  return sum / static_cast<double>(rows.size()) + kPenalty * penalty;
}

// The simplex search of Nelder and Mead (1965).
class Simplex {
 public:
  Simplex(const Rows& rows, const Point& start, double size) : rows_(rows) {
    for (std::size_t i = 0; i <= kFactors; ++i) {
      Corner& corner = corners_[i];
      corner.point = start;
      if (i > 0) corner.point[i - 1] += size;
      corner.loss = loss_of(rows, corner.point);
    }
  }

  void step() {
    std::ranges::stable_sort(corners_, {}, &Corner::loss);
    Corner& worst = corners_.back();
    const Corner away = toward(worst, -1);
    if (away.loss < corners_.front().loss) {
      const Corner further = toward(worst, -2);
      worst = further.loss < away.loss ? further : away;
    } else if (away.loss < corners_[kFactors - 1].loss) {
      worst = away;
    } else if (const Corner nearer = toward(worst, 0.5); nearer.loss < worst.loss) {
      worst = nearer;
    } else {
      shrink();
    }
  }

  struct Corner {
    Point point{};
    double loss = 0;
  };
  const Corner& best() const { return *std::ranges::min_element(corners_, {}, &Corner::loss); }

 private:
  // The point on the line through the centroid of the other corners (`part` 0) and the worst corner (`part` 1).
  Corner toward(const Corner& worst, double part) const {
    Corner result;
    for (std::size_t axis = 0; axis < kFactors; ++axis) {
      double middle = 0;
      for (std::size_t i = 0; i < kFactors; ++i) middle += corners_[i].point[axis] / kFactors;
      result.point[axis] = middle + part * (worst.point[axis] - middle);
    }
    result.loss = loss_of(rows_, result.point);
    return result;
  }
  void shrink() {
    for (std::size_t i = 1; i <= kFactors; ++i) {
      for (std::size_t axis = 0; axis < kFactors; ++axis)
        corners_[i].point[axis] = (corners_[0].point[axis] + corners_[i].point[axis]) / 2;
      corners_[i].loss = loss_of(rows_, corners_[i].point);
    }
  }

  const Rows& rows_;
  std::array<Corner, kFactors + 1> corners_;
};

CostFactors fit(const CollectiveModel& model, Collective kind, std::span<const Measurement> measured) {
  Rows rows;
  for (const Measurement& row : measured) rows.emplace_back(row.us, model.choice_terms(kind, row.bytes));
  // The search ends in the nearest local minimum. So it starts from several points: all factors 1, longer latencies,
  // and two slow networks on which LL128 is not used.
  constexpr Point kStarts[] = {
      {0, 0, 0, 0, 0, 0}, {1, 1, 1, 0, 0, 0}, {0.3, 0.3, 1.5, 0, -1.5, 0}, {1, 1, 2, 0, -1.5, 0}};
  Point best{};
  double min_loss = loss_of(rows, best);
  for (const Point& start : kStarts) {
    Point at = start;
    for (int round = 0; round < kRounds; ++round) {
      Simplex simplex(rows, at, round == 0 ? 0.5 : 0.3);
      for (int i = 0; i < kSteps; ++i) simplex.step();
      at = simplex.best().point;
      if (simplex.best().loss < min_loss) {
        min_loss = simplex.best().loss;
        best = at;
      }
    }
  }
  // The loss limits the weight of outliers; the mean error does not. So with scattered times, the mean error can be
  // larger with the fitted factors than without them. Then all factors stay 1.
  const CostFactors factors = factors_at(best);
  const double fitted = errors_of(CollectiveModel(model.inputs(), factors), kind, measured).mean;
  return fitted > errors_of(model, kind, measured).mean ? CostFactors{} : factors;
}

// One row for each size, in the order of the sizes, with the mean time of its rows. A log with several runs has each
// size several times. Cross-validation needs different sizes: otherwise the fit would have seen the sizes left out.
std::vector<Measurement> by_size(std::span<const Measurement> rows) {
  std::map<double, std::pair<double, int>> times;  // their sum and number
  for (const Measurement& row : rows) {
    times[row.bytes].first += row.us;
    ++times[row.bytes].second;
  }
  std::vector<Measurement> result;
  for (const auto& [bytes, time] : times) result.push_back({bytes, time.first / time.second});
  return result;
}

// --- Tables of measured times, as text of all_reduce_perf or as JSON ---

constexpr std::size_t kMaxRows = 10'000;
constexpr double kMaxBytesOfCall = 1e18, kMaxUs = 1e15;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view kSpace = " \t\r";
  for (std::size_t at = 0; (at = line.find_first_not_of(kSpace, at)) != std::string_view::npos;) {
    words.push_back(line.substr(at, line.find_first_of(kSpace, at) - at));
    at += words.back().size();
  }
  return words;
}

// The columns of all_reduce_perf: size, count, type, redop, root, and the time out of place. Old versions have no root.
// So the column of the time is found in the heading. Without a heading it is kTimeColumn, or the column before it
// if the column of the root holds a number with a point: that is a time.
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
    const auto bytes = base::parse_number<double>(words[0], 0, kMaxBytesOfCall);
    const auto us = base::parse_number<double>(words[column], 0, kMaxUs);
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

std::vector<Measurement> parse_tables(const Json& json, const std::string& file, std::string_view table, Here here) {
  if (json.is_object() && json.contains("results")) return parse_results(JsonFields(json, file, here));
  if (json.is_object()) {
    JsonFields fields(json, file, here);
    return parse_rows(*read_table(fields).rows, fields.path_of("rows"), here);
  }
  const bool has_tables = json.is_array() && !json.empty() && json[0].is_object() && json[0].contains("rows");
  if (!has_tables) return parse_rows(json, file, here);
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

FitErrors errors_of(const CollectiveModel& model, Collective kind, std::span<const Measurement> rows) {
  FitErrors errors;
  for (const Measurement& row : rows) {
    const double error = std::abs(model.choice(kind, row.bytes).us / row.us - 1);
    errors.mean += error / static_cast<double>(rows.size());
    if (error > errors.worst) {
      errors.worst = error;
      errors.worst_bytes = row.bytes;
    }
  }
  return errors;
}

Fit fit_costs(const ModelInputs& inputs, Collective kind, std::span<const Measurement> measured, Here here) {
  if (inputs.ranks < 2)
    base::fail(ErrorCode::kInvalidValue, here, "a fit needs at least 2 ranks, there is {}", inputs.ranks);
  for (const Measurement& row : measured) {
    if (!(row.bytes > 0) || !(row.us > 0) || !std::isfinite(row.bytes) || !std::isfinite(row.us))
      base::fail(ErrorCode::kInvalidValue, here, "a row of {} bytes and {} us: both must be more than 0", row.bytes,
                 row.us);
  }
  const std::vector<Measurement> rows = by_size(measured);
  if (rows.size() < kMinFitRows)
    base::fail(ErrorCode::kInvalidValue, here, "a fit needs at least {} rows with different sizes, there are {}",
               kMinFitRows, rows.size());
  const CollectiveModel model(inputs);
  Fit result;
  result.before = errors_of(model, kind, rows);
  // Cross-validation: each half of the rows is left out once, so that the error does not depend on the choice of a
  // half.
  for (const std::size_t odd : {0U, 1U}) {
    std::vector<Measurement> used, left;
    for (std::size_t i = 0; i < rows.size(); ++i) (i % 2 == odd ? left : used).push_back(rows[i]);
    const FitErrors errors = errors_of(CollectiveModel(inputs, fit(model, kind, used)), kind, left);
    result.left_out.mean += errors.mean * static_cast<double>(left.size()) / static_cast<double>(rows.size());
    if (errors.worst > result.left_out.worst) {
      result.left_out.worst = errors.worst;
      result.left_out.worst_bytes = errors.worst_bytes;
    }
  }
  result.rows_left_out = rows.size();
  result.factors = fit(model, kind, rows);
  result.after = errors_of(CollectiveModel(inputs, result.factors), kind, rows);
  return result;
}

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
