// A measured step of gradients beside the predicted one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/quantity_text.hpp"
#include "slip/gradient_report.hpp"

namespace slip {
namespace {

void require_same_buckets(const GradientReport& predicted, const GradientReport& measured, Here here) {
  const bool same = std::ranges::equal(predicted.buckets, measured.buckets,
                                       [](const auto& one, const auto& other) { return one.bucket == other.bucket; });
  if (!same)
    throw Error(Code::kMismatch,
                fmt::format("two steps of other buckets cannot be compared: {} were predicted, {} measured",
                            predicted.buckets.size(), measured.buckets.size()),
                here);
}

std::string name_of(const GradientReport& measured, std::size_t bucket) {
  const std::string& gradients = measured.buckets[bucket].gradients;
  return gradients.empty() ? fmt::format("bucket {}", bucket) : fmt::format("bucket {}, {}", bucket, gradients);
}

Picos backward_end(const GradientReport& report) {
  Picos end = 0;
  for (const GradientReport::Part& part : report.buckets) end = std::max(end, part.ready);
  return end;
}

}  // namespace

double StepComparison::error() const {
  if (measured == 0) return 0;
  return std::abs(static_cast<double>(predicted - measured)) / static_cast<double>(measured);
}

std::string StepComparison::text(std::size_t most) const {
  std::string text = fmt::format(
      "from the first gradient to the last one's use: predicted {}, measured {}, {:.1f} % off\n"
      "exposed: predicted {}, measured {}; communication: predicted {}, measured {}\n",
      format_time(predicted), format_time(measured), 100 * error(), format_time(predicted_exposed),
      format_time(measured_exposed), format_time(predicted_communication), format_time(measured_communication));
  for (std::size_t i = 0; i < std::min(most, differences.size()); ++i) {
    const Difference& one = differences[i];
    text +=
        fmt::format("  {}: predicted {}, measured {}\n", one.op, format_time(one.predicted), format_time(one.measured));
  }
  return text;
}

// The backward pass is cut where a bucket becomes ready, so that what is late once is not late in all that follows.
StepComparison compare_steps(const GradientReport& predicted, const GradientReport& measured, Here here) {
  require_same_buckets(predicted, measured, here);
  StepComparison result{.predicted = predicted.used,
                        .measured = measured.used,
                        .predicted_exposed = predicted.exposed,
                        .measured_exposed = measured.exposed,
                        .predicted_communication = predicted.communication,
                        .measured_communication = measured.communication};
  const std::size_t count = predicted.buckets.size();
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return predicted.buckets[a].ready < predicted.buckets[b].ready; });
  Picos theirs = 0, ours = 0;
  for (const std::size_t i : order) {
    const GradientReport::Part &one = predicted.buckets[i], &other = measured.buckets[i];
    result.differences.push_back({name_of(measured, i), one.end - one.start, other.end - other.start});
    result.differences.push_back({fmt::format("backward until {} is ready", name_of(measured, i)), one.ready - theirs,
                                  std::max<Picos>(0, other.ready - ours)});
    theirs = one.ready;
    ours = std::max(ours, other.ready);
  }
  result.differences.push_back({"work behind the backward pass",
                                predicted.used - predicted.exposed - backward_end(predicted),
                                measured.used - measured.exposed - backward_end(measured)});
  std::ranges::stable_sort(result.differences, [](const auto& a, const auto& b) {
    return std::abs(a.measured - a.predicted) > std::abs(b.measured - b.predicted);
  });
  return result;
}

}  // namespace slip
