#include "slip/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "slip/analysis.hpp"
#include "watch/analysis/op_graph.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip {
namespace {

bool shares_queues(std::span<const TraceSpan> spans) {
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint64_t> stream_of;
  std::uint64_t last = 0;
  for (const TraceSpan& span : spans) {
    if (span.queue < 0 || span.stream == last) continue;
    last = span.stream;
    if (stream_of.try_emplace({span.device, span.queue}, span.stream).first->second != span.stream) return true;
  }
  return false;
}

// Adds the ops that were ready but were behind another stream's op in a shared hardware queue, by pairs of source
// lines.
void add_queue_delays(const TraceData& trace, std::span<const TraceSpan> spans, std::vector<FalseDependency>& result) {
  if (!shares_queues(spans)) return;
  const Analysis analysis = analyse(trace, spans);
  std::map<std::pair<watch::SourceLine, watch::SourceLine>, std::size_t> index;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const StartReason& start = analysis.starts[i];
    if (start.cause != StartCause::kQueue || start.after == kNoSpan) continue;
    const TraceSpan& held = spans[i];
    const TraceSpan& by = spans[start.after];
    const auto [found, first] = index.try_emplace({watch::source_of(held), watch::source_of(by)}, result.size());
    if (first) result.push_back({watch::place_of(held), watch::place_of(by), true, 0, 0});
    ++result[found->second].times;
    result[found->second].cost += held.started - start.ready;
  }
}

std::string time_text(Picos time) {
  const double us = static_cast<double>(time) / 1e6;
  return us < 1000 ? fmt::format("{:.4g} us", us) : fmt::format("{:.4g} ms", us / 1000);
}
std::string times_text(std::uint64_t times) { return times > 1 ? fmt::format(", {} times", times) : std::string(); }

std::string cost_text(Picos cost, bool is_known) {
  if (!is_known) return "its cost was not computed, because there were too many such waits";
  return cost > 0 ? "without it the run would be " + time_text(cost) + " shorter" : "it did not make the run longer";
}

std::string text_of(const SuperfluousWait& wait) {
  const std::string place = wait.file.empty() ? std::string() : fmt::format(" at {}:{}", wait.file, wait.line);
  return fmt::format("superfluous wait{}{}: {}; {}\n  {}\n  waits for {}\n", place, times_text(wait.times),
                     wait.implied ? "earlier waits order the same" : "no two ops need it",
                     cost_text(wait.cost, wait.cost_known), wait.before.text(),
                     wait.after.name.empty() ? "nothing" : wait.after.text());
}

std::string text_of(const FalseDependency& found) {
  if (found.queue)
    return fmt::format(
        "false dependency{}: ready, but behind another stream's op in the same hardware queue, {} in all\n  {}\n"
        "  waited for {}\n  more hardware queues, or issuing it first, would avoid the wait\n",
        times_text(found.times), time_text(found.cost), found.held.text(), found.by.text());
  return fmt::format(
      "false dependency{}: only the legacy stream's implicit barrier orders it; {}\n  {}\n  waited for {}\n"
      "  non-blocking streams, or another stream for the legacy stream's op, would avoid the wait\n",
      times_text(found.times), cost_text(found.cost, found.cost_known), found.held.text(), found.by.text());
}

std::string text_of(const Deadlock& deadlock) {
  std::string result = fmt::format("deadlock: {} ops wait for each other\n", deadlock.cycle.size());
  for (const Deadlock::Step& step : deadlock.cycle)
    result += fmt::format("  {}\n    {}\n", step.op.text(), step.because);
  return result + fmt::format("  {}\n", deadlock.cycle.front().op.text());
}

}  // namespace

CheckReport check_trace(const TraceData& trace) {
  CheckReport report;
  report.foreign = trace.foreign;
  if (report.foreign) return report;
  const std::vector<TraceSpan> spans = trace.spans();
  watch::NeededEdges needed;
  report.races = watch::check_races(trace, false, &needed);
  report.deadlocks = watch::find_deadlocks(trace, spans);
  // In a racy or incomplete trace it is undefined which waits are needed.
  if (report.races.races.empty() && trace.dropped == 0 && !needed.gave_up())
    watch::find_superfluous(trace, spans, needed, report);
  add_queue_delays(trace, spans, report.false_dependencies);
  std::ranges::stable_sort(report.false_dependencies, std::greater(), &FalseDependency::cost);
  watch::name_streams(report, watch::StreamNames(trace));
  return report;
}

bool CheckReport::clean() const { return races.races.empty() && races.dropped == 0 && deadlocks.empty() && !foreign; }

std::string CheckReport::text() const {
  if (foreign) return "unknown: Slipstream did not record this trace, so it does not say which memory its ops access\n";
  std::string result;
  for (const Deadlock& deadlock : deadlocks) result += text_of(deadlock);
  for (const SuperfluousWait& wait : superfluous) result += text_of(wait);
  for (const FalseDependency& found : false_dependencies) result += text_of(found);
  return result + races.text();
}

}  // namespace slip
