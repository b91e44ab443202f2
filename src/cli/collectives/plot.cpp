
#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/collectives/measure.hpp"
#include "cli/text.hpp"

namespace slip::cli {
namespace {

constexpr double kWidth = 560, kHeight = 360, kLeft = 62, kRight = 16, kTop = 40, kBottom = 44;
constexpr const char *kApart = "#2563eb", *kInPlace = "#ea580c", *kPredicted = "#16a34a";

constexpr const char* kStyle =
    "body{font:14px/1.45 Helvetica,Arial,sans-serif;color:#0f172a;margin:28px auto;max-width:1180px;padding:0 20px}"
    "h1{font-size:22px;margin:0 0 4px}p{color:#475569;margin:0 0 14px}.plots{display:flex;flex-wrap:wrap;gap:20px}"
    "svg{max-width:100%;height:auto}table{border-collapse:collapse;margin-top:18px;font-size:13px;font-variant-numeric:"
    "tabular-nums}"
    "th,td{padding:3px 9px;text-align:right;border-bottom:1px solid #e2e8f0;white-space:nowrap}"
    "th{color:#475569;font-weight:600}.group{text-align:center}.wrong{color:#b91c1c;font-weight:700}"
    ".scroll{overflow-x:auto}";

std::string figure(double value) {
  if (value >= 100) return fmt::format("{:.0f}", value);
  return value >= 1 ? fmt::format("{:.2f}", value) : fmt::format("{:.3g}", value);
}

struct Point {
  double bytes = 0, value = 0;
};
using Series = std::vector<Point>;

// A logarithmic scale, slightly wider than its data.
class Scale {
 public:
  Scale(double min, double max, double from, double to)
      : low_(std::log10(min)), high_(std::log10(max)), from_(from), to_(to) {
    const double room = std::max((high_ - low_) * 0.04, 0.02);
    low_ -= room;
    high_ += room;
  }
  double at(double value) const { return from_ + (std::log10(value) - low_) / (high_ - low_) * (to_ - from_); }
  double min() const { return std::pow(10, low_); }
  double max() const { return std::pow(10, high_); }

 private:
  double low_, high_, from_, to_;
};

class Plot : Lines {
 public:
  Plot(std::string title, std::string unit, Series apart, Series in_place, Series predicted)
      : title_(std::move(title)),
        unit_(std::move(unit)),
        apart_(std::move(apart)),
        in_place_(std::move(in_place)),
        predicted_(std::move(predicted)),
        across_(bounds(&Point::bytes, kLeft, kWidth - kRight)),
        up_(bounds(&Point::value, kHeight - kBottom, kTop)) {}

  std::string draw() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\" role=\"img\" aria-label=\"{2} by size\">",
        kWidth, kHeight, html_text(title_));
    put("<text x=\"{:.0f}\" y=\"18\" font-size=\"14\" font-weight=\"600\" fill=\"#334155\">{} ({})</text>", kLeft,
        html_text(title_), html_text(unit_));
    grid();
    line(apart_, kApart, "out of place", kWidth - kRight - 170);
    if (!in_place_.empty()) line(in_place_, kInPlace, "in place", kWidth - kRight - 66);
    if (!predicted_.empty()) line(predicted_, kPredicted, "predicted", kWidth - kRight - 268);
    out_ += "</svg>\n";
    return out_;
  }

 private:
  Scale bounds(double Point::*of, double from, double to) const {
    double min = std::numeric_limits<double>::max(), max = 0;
    for (const Series* series : {&apart_, &in_place_, &predicted_}) {
      for (const Point& point : *series) {
        min = std::min(min, point.*of);
        max = std::max(max, point.*of);
      }
    }
    return {min, max, from, to};
  }

  void grid() {
    const double bottom = kHeight - kBottom, right = kWidth - kRight;
    for (double power = std::exp2(std::ceil(std::log2(across_.min()))); power <= across_.max(); power *= 2) {
      const bool named = std::fmod(std::log2(power), label_step()) == 0;
      const double x = across_.at(power);
      put("<path d=\"M{0:.1f} {1:.1f} V{2:.1f}\" stroke=\"{3}\"/>", x, kTop, bottom, named ? "#e2e8f0" : "#f1f5f9");
      if (!named) continue;
      put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"middle\" fill=\"#475569\">{}</text>", x,
          bottom + 16, base::format_bytes(static_cast<std::uint64_t>(power)));
    }
    put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"12\" text-anchor=\"middle\" fill=\"#475569\">size</text>",
        (kLeft + right) / 2, kHeight - 6);
    const double tall = std::log10(up_.max() / up_.min());  // decades; a short scale gets additional grid lines
    for (double ten = std::pow(10, std::floor(std::log10(up_.min()))); ten <= up_.max(); ten *= 10) {
      for (int digit = 1; digit < 10; ++digit) {
        const double value = ten * digit;
        if (value < up_.min() || value > up_.max()) continue;
        const bool named = digit == 1 || (tall < 2.5 && (digit == 2 || digit == 5)) || tall < 0.7;
        const double y = up_.at(value);
        put("<path d=\"M{0:.1f} {1:.1f} H{2:.1f}\" stroke=\"{3}\"/>", kLeft, y, right, named ? "#e2e8f0" : "#f1f5f9");
        if (!named) continue;
        put("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"11\" text-anchor=\"end\" fill=\"#475569\">{:g}</text>",
            kLeft - 7, y + 4, value);
      }
    }
    put("<path d=\"M{0:.1f} {1:.1f} V{2:.1f} H{3:.1f}\" fill=\"none\" stroke=\"#94a3b8\"/>", kLeft, kTop, bottom,
        right);
  }

  // Labels at most about eight sizes.
  double label_step() const { return std::max(1.0, std::ceil(std::log2(across_.max() / across_.min()) / 8)); }

  void line(const Series& series, const char* colour, const char* name, double legend_x) {
    std::string path;
    for (const Point& point : series)
      path += fmt::format("{}{:.1f} {:.1f} ", path.empty() ? 'M' : 'L', across_.at(point.bytes), up_.at(point.value));
    put("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>", path, colour);
    for (const Point& point : series)
      put("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"#ffffff\" stroke=\"{}\" "
          "stroke-width=\"2\"><title>{}, {}: {} {}</title></circle>",
          across_.at(point.bytes), up_.at(point.value), colour,
          base::format_bytes(static_cast<std::uint64_t>(point.bytes)), name, figure(point.value), unit_);
    put("<path d=\"M{0:.1f} 14 h18\" stroke=\"{1}\" stroke-width=\"2\"/><text x=\"{2:.1f}\" y=\"18\" "
        "font-size=\"12\" fill=\"#334155\">{3}</text>",
        legend_x - 6, colour, legend_x + 17, name);
  }

  const std::string title_, unit_;
  const Series apart_, in_place_, predicted_;
  const Scale across_, up_;
};

// `value_of` returns the value of a row; rows without a value, or with 0, have no point: a single rank has no bus
// bandwidth.
template <class ValueOf>
Series series_of(const std::vector<BenchRow>& rows, const ValueOf& value_of) {
  Series result;
  for (const BenchRow& row : rows) {
    const std::optional<double> value = value_of(row);
    if (value && *value > 0) result.push_back({static_cast<double>(row.bytes), *value});
  }
  return result;
}

std::string table(const std::vector<BenchRow>& rows) {
  const bool predicted = std::ranges::any_of(rows, [](const BenchRow& row) { return row.predicted_us.has_value(); });
  std::string out =
      "<div class=\"scroll\"><table>\n<tr><th colspan=\"5\"></th><th class=\"group\" colspan=\"4\">out of place</th>"
      "<th class=\"group\" colspan=\"4\">in place</th>";
  out += fmt::format("{}</tr>\n<tr>", predicted ? "<th class=\"group\">predicted</th>" : "");
  for (const char* name : {"size (B)", "count", "type", "redop", "root"}) out += fmt::format("<th>{}</th>", name);
  for (int half = 0; half < 2; ++half) {
    for (const char* name : {"time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"})
      out += fmt::format("<th>{}</th>", name);
  }
  if (predicted) out += "<th>time (us)</th>";
  out += "</tr>\n";
  const auto cells = [](const Measured& one) {
    return fmt::format("<td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td><td{}>{}</td>", one.us, one.algorithm_gbs,
                       one.bus_gbs, one.wrong > 0 ? " class=\"wrong\"" : "", one.wrong);
  };
  for (const BenchRow& row : rows) {
    out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}{}{}</tr>\n", row.bytes,
                       row.call.elements, data_type_name(row.call.type), row.op(), row.root(), cells(row.apart),
                       row.in_place ? cells(*row.in_place) : "<td>-</td><td>-</td><td>-</td><td>-</td>",
                       !predicted         ? std::string()
                       : row.predicted_us ? fmt::format("<td>{:.2f}</td>", *row.predicted_us)
                                          : std::string("<td>-</td>"));
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string bench_page(const std::string& title, const std::string& facts, const std::vector<BenchRow>& rows) {
  const auto plot = [&](const char* name, const char* unit, double Measured::*what, Series predicted) {
    Series apart = series_of(rows, [&](const BenchRow& row) { return row.apart.*what; });
    Series in_place = series_of(rows, [&](const BenchRow& row) { return row.in_place ? (*row.in_place).*what : 0; });
    return apart.empty() ? std::string()
                         : Plot(name, unit, std::move(apart), std::move(in_place), std::move(predicted)).draw();
  };
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{0}</title><style>{1}</style></head>\n"
      "<body>\n<h1>{0}</h1>\n<p>{2}</p>\n<div class=\"plots\">\n{3}{4}</div>\n{5}</body>\n</html>\n",
      html_text(title), kStyle, html_text(facts),
      plot("Time", "us", &Measured::us, series_of(rows, std::mem_fn(&BenchRow::predicted_us))),
      plot("Bus bandwidth", "GB/s", &Measured::bus_gbs, {}), table(rows));
}

}  // namespace slip::cli
