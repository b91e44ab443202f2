#include "flow/gradients/gradient_report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::flow {
namespace {

StepAnalysis::Chain& chain_of(const GradientTimes& times, const GradientTimes::WaitTimes& wait,
                              StepAnalysis& analysis) {
  const auto known = std::find_if(analysis.chains.begin(), analysis.chains.end(),
                                  [&](const StepAnalysis::Chain& one) { return one.stream == wait.stream; });
  if (known != analysis.chains.end()) return *known;
  Picos last_gradient = -1;
  for (std::size_t i = 0; i < times.arrivals.size(); ++i) {
    if (times.sources[i] == wait.stream) last_gradient = std::max(last_gradient, times.arrivals[i]);
  }
  return analysis.chains.emplace_back(StepAnalysis::Chain{wait.stream, last_gradient, wait.reached, wait.reached, 0});
}

void note_need(StepAnalysis& analysis, std::size_t parameter, Picos due) {
  Picos& needed = analysis.needed[parameter];
  needed = analysis.known[parameter] ? std::min(needed, due) : due;
  analysis.known[parameter] = 1;
}

double milliseconds(Picos time) { return static_cast<double>(time) / 1e9; }

// Returns why a stream stalled for a call since `from`. Either the call queued behind other calls, or its transfer took
// the expected time `cost`, or it took longer.
std::string cause_of(const GradientReport::Part& part, Picos from, Picos cost) {
  const auto within = [&](Picos begin, Picos end) {
    return std::max<Picos>(0, std::min(end, part.end) - std::max(begin, from));
  };
  const Picos behind = within(part.ready, part.start);
  const Picos own = within(part.start, std::min(part.end, part.start + cost));
  const Picos slow = within(part.start + cost, part.end);
  if (behind >= own && behind >= slow) return "behind the calls before it";
  if (slow > own) return "slower than measured alone: another rank joined the call late, or the link was shared";
  return part.start <= part.ready + cost / 10 ? "its gradients came last" : "its own transfer";
}

}  // namespace

// Each stream has a chain of waits. The time between two waits is work, which takes the same time without
// communication.
void analyze_step(const GradientTimes& times, StepAnalysis& analysis) {
  analysis.backward_end = analysis.exposed = 0;
  analysis.exposed_in = 0;
  for (const Picos arrival : times.arrivals) analysis.backward_end = std::max(analysis.backward_end, arrival);
  analysis.needed.assign(times.arrivals.size(), analysis.backward_end);
  analysis.known.assign(times.arrivals.size(), 0);
  analysis.stalls.clear();
  analysis.chains.clear();
  Picos last = analysis.backward_end;
  for (const GradientTimes::WaitTimes& wait : times.waits) {
    StepAnalysis::Chain& chain = chain_of(times, wait, analysis);
    const Picos went_on = std::min(wait.left, std::max(wait.reached, times.ends[wait.call]));
    chain.due = std::max(chain.due + (wait.reached - chain.left), analysis.backward_end);
    chain.left = went_on;
    const bool in_backward = wait.reached < chain.last_gradient;
    const Picos from = in_backward ? wait.reached : std::max(wait.reached, analysis.backward_end);
    analysis.stalls.push_back({from, std::max<Picos>(0, went_on - from)});
    chain.stalled += analysis.stalls.back().time;
    if (wait.parameter == GradientTimes::kAll) {
      for (std::size_t i = 0; i < analysis.needed.size(); ++i) note_need(analysis, i, chain.due);
    } else {
      note_need(analysis, wait.parameter, chain.due);
    }
    last = std::max(last, chain.due);
    if (chain.stalled > analysis.exposed) analysis.exposed = chain.stalled, analysis.exposed_in = chain.stream;
  }
  for (std::size_t i = 0; i < analysis.known.size(); ++i) {
    if (!analysis.known[i]) analysis.needed[i] = last;
  }
}

GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost) {
  GradientReport report;
  StepAnalysis analysis;
  analyze_step(times, analysis);
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    report.buckets.push_back({.bucket = plan.buckets[i], .start = times.starts[i], .end = times.ends[i]});
    report.communication += times.ends[i] - times.starts[i];
  }
  for (std::uint32_t parameter = 0; parameter < times.arrivals.size(); ++parameter) {
    for (const std::uint32_t call : calls_of(parameter)) {
      GradientReport::Part& part = report.buckets[call];
      part.ready = std::max(part.ready, times.arrivals[parameter]);
    }
  }
  report.exposed = analysis.exposed;
  report.used = analysis.backward_end;
  std::vector<Picos> from(report.buckets.size(), 0);
  for (std::size_t i = 0; i < times.waits.size(); ++i) {
    const GradientTimes::WaitTimes& wait = times.waits[i];
    report.used = std::max(report.used, wait.left);
    if (wait.stream != analysis.exposed_in) continue;  // only the stream that stalled longest counts
    GradientReport::Part& part = report.buckets[wait.call];
    if (analysis.stalls[i].time > 0 && part.exposed == 0) from[wait.call] = analysis.stalls[i].from;
    part.exposed += analysis.stalls[i].time;
  }
  for (std::size_t i = 0; i < report.buckets.size(); ++i) {
    GradientReport::Part& part = report.buckets[i];
    if (part.exposed > 0)
      part.cause = cause_of(part, from[i], cost.known() ? cost.time(part.bucket.bytes) : part.end - part.start);
  }
  report.time = times.next_step > 0 ? times.next_step : report.used;
  report.bound = std::max(report.time - report.exposed, report.communication);
  return report;
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

double GradientReport::overlapped() const {
  if (communication == 0) return 100;
  return 100.0 * static_cast<double>(std::max<Picos>(0, communication - exposed)) / static_cast<double>(communication);
}

double GradientReport::of_bound() const {
  return bound > 0 ? static_cast<double>(time) / static_cast<double>(bound) : 1;
}

std::string GradientReport::line() const {
  return fmt::format(
      "step {}: {:.2f} ms, communication {:.2f} ms, {:.0f} % overlapped, exposed {:.2f} ms, {:.2f}x of the bound", step,
      milliseconds(time), milliseconds(communication), overlapped(), milliseconds(exposed), of_bound());
}

std::string GradientReport::text() const {
  std::string text = line() + "\n";
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Part& part = buckets[i];
    text += fmt::format("  bucket {:>3} {:>12} bytes: ready {:.3f}, {:.3f} to {:.3f} ms", i, part.bucket.bytes,
                        milliseconds(part.ready), milliseconds(part.start), milliseconds(part.end));
    if (part.exposed > 0) text += fmt::format(", exposed {:.3f} ms: {}", milliseconds(part.exposed), part.cause);
    if (!part.gradients.empty()) text += fmt::format("; {}", part.gradients);
    text += "\n";
  }
  return text;
}

}  // namespace slip
