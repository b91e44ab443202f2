// check_trace(): finds the waits and barriers of a trace that no conflict needs, and the ops that a shared hardware
// queue delayed. Adds the races and the deadlocks. The report's text describes them all.
#include "slip/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "slip/analysis.hpp"
#include "watch/analysis/op_graph.hpp"
#include "watch/analysis/starts.hpp"
#include "watch/race/trace_checks.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::watch {
namespace {

// All waits of one source line for ops of one other line. They can be removed only if none of them is ever needed. Two
// waits on one line may wait for different ops, and then form two groups. If source lines are unknown, a group contains
// all waits between two streams.
struct WaitGroup {
  std::vector<std::uint32_t> records;
  bool needed = false;  // a conflict needs one of them
  bool implied = true;  // earlier edges establish the order of each of them
};
// File and line of the wait, and the awaited op. Or, if lines are unknown, the awaited stream and the waiting stream.
using WaitKey = std::tuple<std::string_view, std::int32_t, SourceLine, std::uint64_t, std::uint64_t>;

constexpr std::uint64_t kMaxPasses = 8;  // limit for cost_of(): number of replays, each of which passes over the trace

// A program may name its own streams "legacy". Of these streams of a device, the legacy stream has the lowest id,
// because it is opened with the device.
std::unordered_set<std::uint64_t> legacy_streams(std::span<const TraceRecord* const> opened) {
  std::map<std::uint32_t, std::uint64_t> lowest;  // by device
  for (const TraceRecord* record : opened) {
    if (record->name != "legacy") continue;
    std::uint64_t& id = lowest.try_emplace(record->device, record->stream).first->second;
    id = std::min(id, record->stream);
  }
  std::unordered_set<std::uint64_t> result;
  for (const auto& [device, id] : lowest) result.insert(id);
  return result;
}

// Finds the waits and the legacy barriers that no conflict needs, and the time that they cost. `spans` is
// trace.spans(), `opened` the records of the streams.
class SuperfluousFinder {
 public:
  SuperfluousFinder(const TraceData& trace, std::span<const TraceSpan> spans,
                    std::span<const TraceRecord* const> opened)
      : trace_(trace), spans_(spans), ops_(spans, SpanChoice::kSubmitted), legacy_(legacy_streams(opened)) {
    for (std::uint32_t i = 0; i < trace.records.size(); ++i) {
      const TraceRecord& record = trace.records[i];
      if (is_command(record)) commands_[record.stream].push_back(i);
      else if (record.kind == RecordKind::kSync || record.kind == RecordKind::kQuery) syncs_.push_back(record.sequence);
    }
  }

  // Adds them to the report, the most expensive first. `needed` was filled by check_races() of the same trace.
  void find(const NeededEdges& needed, CheckReport& report) {
    for (const NeededEdges::Edge& edge : needed.edges()) sort_in(edge);
    for (const auto& [key, group] : waits_) {
      if (!group.needed && !group.records.empty() && !waits_for_nothing_yet(key))
        report.superfluous.push_back(wait_of(group));
    }
    for (const auto& [key, group] : barriers_) {
      if (!group.needed && !group.records.empty()) report.false_dependencies.push_back(barrier_of(group));
    }
    std::ranges::stable_sort(report.superfluous, std::greater(), &SuperfluousWait::cost);
  }

 private:
  // Whether these waits of a line wait for no op, but other waits of the same line are needed. Example: in the first
  // iteration of a loop the awaited stream has no op yet.
  bool waits_for_nothing_yet(const WaitKey& key) const {
    const auto& [file, line, awaited, from, to] = key;
    if (awaited != SourceLine()) return false;
    for (auto group = waits_.lower_bound({file, line, {}, 0, 0}); group != waits_.end(); ++group) {
      if (std::get<0>(group->first) != file || std::get<1>(group->first) != line) return false;
      if (group->second.needed) return true;
    }
    return false;
  }

  // Whether the record is a command that is a barrier in the legacy stream (docs/semantics.md, rules 8 and 9).
  static bool is_command(const TraceRecord& record) {
    return record.kind == RecordKind::kSubmit || record.kind == RecordKind::kEventWait ||
           record.kind == RecordKind::kEventRecord || record.kind == RecordKind::kFree;
  }
  WaitGroup& group_of(const TraceRecord& wait) {
    if (wait.file.empty()) return waits_[{{}, 0, {}, wait.other_stream, wait.stream}];
    const TraceSpan* awaited = ops_.last_until(wait.other_stream, wait.other_position);
    const SourceLine source = awaited ? SourceLine{awaited->file, awaited->line, awaited->name} : SourceLine();
    return waits_[{wait.file, wait.line, source, 0, 0}];
  }

  // A wait in the legacy stream is itself a barrier: blocking streams come after it, and after everything that it waits
  // for. If such a barrier is needed, the wait is needed.
  void note_barrier_of_wait(const NeededEdges::Edge& edge, const TraceRecord& barrier) {
    if (!edge.needed || !legacy_.contains(barrier.other_stream)) return;
    const std::vector<std::uint32_t>& commands = commands_[barrier.other_stream];
    const auto later = std::partition_point(commands.begin(), commands.end(), [&](std::uint32_t i) {
      return trace_.records[i].position <= barrier.other_position;
    });
    if (later == commands.begin()) return;
    const TraceRecord& command = trace_.records[*std::prev(later)];
    if (command.kind == RecordKind::kEventWait) group_of(command).needed = true;
  }
  // A wait in a blocking stream comes after legacy work, as the stream's next op does. Suppose that the host syncs
  // before the stream gets another command. Then only this wait makes the host wait for the legacy work, so it is
  // needed. Any sync or query counts.
  void note_barrier_before_wait(const NeededEdges::Edge& edge, const TraceRecord& barrier) {
    if (!edge.needed || legacy_.contains(barrier.stream)) return;
    const std::vector<std::uint32_t>& commands = commands_[barrier.stream];
    const auto first = std::partition_point(commands.begin(), commands.end(), [&](std::uint32_t i) {
      return trace_.records[i].sequence <= barrier.sequence;
    });
    const auto next = std::find_if(
        first, commands.end(), [this](std::uint32_t i) { return trace_.records[i].kind != RecordKind::kEventWait; });
    const auto sync = std::upper_bound(syncs_.begin(), syncs_.end(), barrier.sequence);
    if (sync == syncs_.end() || (next != commands.end() && trace_.records[*next].sequence < *sync)) return;
    for (auto wait = first; wait != next; ++wait) group_of(trace_.records[*wait]).needed = true;
  }

  void sort_in(const NeededEdges::Edge& edge) {
    const TraceRecord& record = trace_.records[edge.record];
    if (record.kind == RecordKind::kBarrier) {
      note_barrier_of_wait(edge, record);
      note_barrier_before_wait(edge, record);
    }
    WaitGroup* group = nullptr;
    if (record.kind == RecordKind::kEventWait) {
      group = &group_of(record);
    } else if (record.kind == RecordKind::kBarrier && record.name.empty()) {  // the runtime names its own barriers
      const TraceSpan* op = legacy_op(record);
      if (!op) return;
      group = &barriers_[{op->file, op->line, op->name}];
    } else {
      return;
    }
    group->needed = group->needed || edge.needed;
    group->implied = group->implied && edge.implied;
    // A wait without a following op costs nothing, and may order work that the trace does not contain.
    if (edge.used || (edge.implied && ops_.first_after(record.stream, record.sequence)))
      group->records.push_back(edge.record);
  }

  const TraceSpan* legacy_op(const TraceRecord& barrier) const {
    if (legacy_.contains(barrier.stream)) return ops_.first_after(barrier.stream, barrier.sequence);
    if (legacy_.contains(barrier.other_stream)) return ops_.last_until(barrier.other_stream, barrier.other_position);
    return nullptr;
  }
  OpPlace awaited_op(const TraceRecord& record) const {
    const TraceSpan* op = ops_.last_until(record.other_stream, record.other_position);
    return op ? place_of(*op) : OpPlace{.stream = record.other_stream};
  }
  OpPlace waiting_op(const TraceRecord& record) const {
    const TraceSpan* op = ops_.first_after(record.stream, record.sequence);
    return op ? place_of(*op) : OpPlace{.stream = record.stream};
  }

  SuperfluousWait wait_of(const WaitGroup& group) {
    const TraceRecord& first = trace_.records[group.records.front()];
    const std::optional<Picos> cost = cost_of(group);
    return {awaited_op(first),    waiting_op(first), first.file,       first.line,
            group.records.size(), group.implied,     cost.value_or(0), cost.has_value()};
  }
  // Prefers a barrier at which an op of another stream waited for the legacy stream over one at which the legacy stream
  // waited.
  FalseDependency barrier_of(const WaitGroup& group) {
    const auto out = std::find_if(group.records.begin(), group.records.end(),
                                  [&](std::uint32_t i) { return !legacy_.contains(trace_.records[i].stream); });
    const TraceRecord& first = trace_.records[out != group.records.end() ? *out : group.records.front()];
    const std::optional<Picos> cost = cost_of(group);
    return {waiting_op(first), awaited_op(first), false, group.records.size(), cost.value_or(0), cost.has_value()};
  }

  // Whether the wait ever delayed an op: the awaited op ended after the waiting op was submitted.
  bool delayed_an_op(const WaitGroup& group) const {
    return std::any_of(group.records.begin(), group.records.end(), [&](std::uint32_t i) {
      const TraceRecord& record = trace_.records[i];
      const TraceSpan* held = ops_.first_after(record.stream, record.sequence);
      const TraceSpan* by = ops_.last_until(record.other_stream, record.other_position);
      return held && by && held->run && by->run && by->ended > held->queued;
    });
  }
  // Returns the time that the program would save without these waits. Nullopt: not computed, because each computation
  // replays the whole trace, and the limit was reached.
  std::optional<Picos> cost_of(const WaitGroup& group) {
    if (group.implied || !delayed_an_op(group)) return 0;
    if (steps_tried_ >= kMaxPasses * trace_.records.size() + kMaxTrialSteps) return std::nullopt;
    if (!run_) {
      run_.emplace(trace_, spans_);
      length_ = replayed_length(*run_);
    }
    steps_tried_ += trace_.records.size();
    std::vector<bool> left_out(trace_.records.size());
    for (const std::uint32_t i : group.records) left_out[i] = true;
    return std::max<Picos>(0, length_ - replayed_length(*run_, left_out));
  }

  const TraceData& trace_;
  std::span<const TraceSpan> spans_;
  OpsOfStreams ops_;
  const std::unordered_set<std::uint64_t> legacy_;
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> commands_;  // record indices by stream
  std::vector<std::uint64_t> syncs_;                                        // sequence numbers
  std::map<WaitKey, WaitGroup> waits_;
  std::map<SourceLine, WaitGroup> barriers_;  // by the legacy stream's op
  std::optional<RunModel> run_;
  Picos length_ = 0;
  std::uint64_t steps_tried_ = 0;
};

}  // namespace
}  // namespace slip::watch

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

void name_streams(CheckReport& report, const watch::StreamNames& names) {
  const auto name = [&names](OpPlace& place) { place.stream_name = names.of(place.stream); };
  watch::name_streams(report.races, names);
  for (SuperfluousWait& wait : report.superfluous) name(wait.after), name(wait.before);
  for (FalseDependency& found : report.false_dependencies) name(found.held), name(found.by);
  for (Deadlock& deadlock : report.deadlocks) {
    for (Deadlock::Step& step : deadlock.cycle) name(step.op);
  }
}

}  // namespace

CheckReport check_trace(const TraceData& trace) {
  CheckReport report;
  report.foreign = trace.foreign;
  if (report.foreign) return report;
  const std::vector<TraceSpan> spans = trace.spans();
  const std::vector<const TraceRecord*> opened = trace.of({RecordKind::kStreamOpen});
  watch::NeededEdges needed;
  report.races = watch::check_races(trace, false, &needed);
  report.deadlocks = watch::find_deadlocks(trace, spans);
  // In a racy or incomplete trace it is undefined which waits are needed.
  if (report.races.races.empty() && trace.dropped == 0 && !needed.gave_up())
    watch::SuperfluousFinder(trace, spans, opened).find(needed, report);
  add_queue_delays(trace, spans, report.false_dependencies);
  std::ranges::stable_sort(report.false_dependencies, std::greater(), &FalseDependency::cost);
  name_streams(report, watch::StreamNames(opened));
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
