// A measured run beside the predicted one.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/quantity_text.hpp"
#include "flow/weights/step.hpp"
#include "slip/runner.hpp"

namespace slip {
namespace {

// By op of the graph: the median of how long it ran, of all steps but the first.
std::vector<Picos> op_times(const TraceData& trace, std::uint64_t stream, std::size_t ops) {
  const std::vector<TraceSpan> spans = kernel_spans(trace, stream);
  const std::size_t steps = ops > 0 ? spans.size() / ops : 0;
  std::vector<Picos> times(ops, 0), samples;
  for (std::size_t op = 0; op < ops; ++op) {
    samples.clear();
    for (std::size_t step = steps > 1 ? 1 : 0; step < steps; ++step) {
      const TraceSpan& span = spans[step * ops + op];
      samples.push_back(span.ended - span.started);
    }
    if (samples.empty()) continue;
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    times[op] = *middle;
  }
  return times;
}

}  // namespace

double Comparison::error() const {
  if (measured == 0) return 0;
  return std::abs(static_cast<double>(predicted - measured)) / static_cast<double>(measured);
}

std::string Comparison::text(std::size_t most) const {
  std::string text = fmt::format(
      "predicted {} a step, measured {}: {:.1f} % off; no op ran for {} of it, predicted {}\n", format_time(predicted),
      format_time(measured), 100 * error(), format_time(measured_idle), format_time(predicted_idle));
  for (std::size_t i = 0; i < std::min(most, differences.size()); ++i) {
    const Difference& one = differences[i];
    text +=
        fmt::format("  {}: predicted {}, measured {}\n", one.op, format_time(one.predicted), format_time(one.measured));
  }
  return text;
}

Comparison compare_weights(const Graph& graph, const Prediction& prediction, const TraceData& measured,
                           std::uint64_t compute_stream) {
  const std::size_t ops = graph.ops().size();
  const StepTimes times = step_times(measured, compute_stream, ops);
  Comparison result;
  result.predicted = prediction.step;
  result.predicted_idle = prediction.exposed;
  result.measured = times.steady;
  result.measured_idle = times.idle;
  const std::vector<Picos> theirs = op_times(prediction.trace, prediction.compute_stream, ops);
  const std::vector<Picos> ours = op_times(measured, compute_stream, ops);
  for (std::size_t i = 0; i < ops; ++i) result.differences.push_back({graph.ops()[i].name, theirs[i], ours[i]});
  std::ranges::stable_sort(result.differences, [](const auto& a, const auto& b) {
    return std::abs(a.measured - a.predicted) > std::abs(b.measured - b.predicted);
  });
  return result;
}

}  // namespace slip
