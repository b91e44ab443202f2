#include "slip/comparison.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "flow/costs/measuring.hpp"
#include "flow/weights/step.hpp"
#include "slip/gradient_report.hpp"
#include "slip/runner.hpp"

namespace slip {
namespace {

void sort_differences(Comparison& comparison) {
  std::ranges::stable_sort(comparison.differences, [](const auto& a, const auto& b) {
    return std::abs(a.measured - a.predicted) > std::abs(b.measured - b.predicted);
  });
}

// By op of the graph: the median of its run times in all steps but the first, which warms up. If there is only one
// step, its times.
std::vector<Picos> op_times(const TraceData& trace, std::uint64_t stream, std::size_t ops) {
  const std::vector<TraceSpan> spans = flow::kernel_spans(trace, stream);
  const std::size_t steps = ops > 0 ? spans.size() / ops : 0;
  std::vector<Picos> times(ops, 0), samples;
  for (std::size_t op = 0; op < ops; ++op) {
    samples.clear();
    for (std::size_t step = steps > 1 ? 1 : 0; step < steps; ++step) {
      const TraceSpan& span = spans[step * ops + op];
      samples.push_back(span.ended - span.started);
    }
    if (!samples.empty()) times[op] = flow::median(samples);
  }
  return times;
}

void require_same_buckets(const GradientReport& predicted, const GradientReport& measured, Here here) {
  const bool same = std::ranges::equal(predicted.buckets, measured.buckets,
                                       [](const auto& one, const auto& other) { return one.bucket == other.bucket; });
  if (!same)
    base::fail(
        ErrorCode::kMismatch, here,
        "steps with different buckets cannot be compared: the predicted step has {} buckets, the measured one has "
        "{}; both must use the same bucket plan",
        predicted.buckets.size(), measured.buckets.size());
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

double Comparison::error() const {
  if (measured == 0) return 0;
  return std::abs(static_cast<double>(predicted - measured)) / static_cast<double>(measured);
}

std::string Comparison::text(std::size_t max_differences) const {
  const auto both = [](const std::string& what, Picos prediction, Picos measurement) {
    return fmt::format("{}: predicted {}, measured {}", what, base::format_time(prediction),
                       base::format_time(measurement));
  };
  std::string text = fmt::format("{}, {:.1f} % off\n", both("step", predicted, measured), 100 * error());
  text += both("exposed", predicted_exposed, measured_exposed);
  if (predicted_communication > 0 || measured_communication > 0)
    text += "; " + both("communication", predicted_communication, measured_communication);
  text += "\n";
  for (std::size_t i = 0; i < std::min(max_differences, differences.size()); ++i) {
    const Difference& one = differences[i];
    text += fmt::format("  {}\n", both(one.op, one.predicted, one.measured));
  }
  return text;
}

Comparison compare_weights(const Graph& graph, const Prediction& prediction, const TraceData& measured,
                           std::uint64_t compute_stream) {
  const std::size_t ops = graph.ops().size();
  const flow::StepTimes times = flow::step_times(measured, compute_stream, ops);
  Comparison result;
  result.predicted = prediction.step;
  result.predicted_exposed = prediction.exposed;
  result.measured = times.steady;
  result.measured_exposed = times.idle;
  const std::vector<Picos> predicted_times = op_times(prediction.trace, prediction.compute_stream, ops);
  const std::vector<Picos> measured_times = op_times(measured, compute_stream, ops);
  for (std::size_t i = 0; i < ops; ++i)
    result.differences.push_back({graph.ops()[i].name, predicted_times[i], measured_times[i]});
  sort_differences(result);
  return result;
}

// The backward pass is divided at the times when buckets become ready. So a delay counts in one part only, not in all
// later parts.
Comparison compare_steps(const GradientReport& predicted, const GradientReport& measured, Here here) {
  require_same_buckets(predicted, measured, here);
  Comparison result{.predicted = predicted.used,
                    .measured = measured.used,
                    .predicted_exposed = predicted.exposed,
                    .measured_exposed = measured.exposed,
                    .predicted_communication = predicted.communication,
                    .measured_communication = measured.communication};
  std::vector<std::size_t> order(predicted.buckets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(
      order, [&](std::size_t a, std::size_t b) { return predicted.buckets[a].ready < predicted.buckets[b].ready; });
  Picos predicted_until = 0, measured_until = 0;  // when the bucket before became ready
  for (const std::size_t i : order) {
    const GradientReport::Part &expected = predicted.buckets[i], &found = measured.buckets[i];
    result.differences.push_back({name_of(measured, i), expected.end - expected.start, found.end - found.start});
    result.differences.push_back({fmt::format("backward until {} is ready", name_of(measured, i)),
                                  expected.ready - predicted_until, std::max<Picos>(0, found.ready - measured_until)});
    predicted_until = expected.ready;
    measured_until = std::max(measured_until, found.ready);
  }
  result.differences.push_back({"work after the backward pass",
                                predicted.used - predicted.exposed - backward_end(predicted),
                                measured.used - measured.exposed - backward_end(measured)});
  sort_differences(result);
  return result;
}

}  // namespace slip
