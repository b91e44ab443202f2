// Finds the races of a whole trace, and which fixes can be left out.
#include "watch/race/race_check.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip::watch {
namespace {

void describe_buffers(RaceCheck& check, const TraceData& trace) {
  for (const TraceBuffer& buffer : trace.buffers) {
    check.name_buffer(buffer.id, buffer.name);
    if (buffer.kind != MemoryKind::kDevice) check.mark_host_memory(buffer.id);
    // A merged trace contains several processes, each with its own addresses. Their devices have different ids.
    if (buffer.address != 0) check.mark_wrapped(buffer.id, buffer.address, buffer.device);
  }
}

}  // namespace

// Whether these edges order every conflict of the trace.
bool FixReduction::orders_all(const std::vector<RaceFix>& fixes) {
  RaceCheck check(by_op_);
  check.assume(fixes);
  describe_buffers(check, trace_);
  steps_ += fixes.size();
  for (const TraceRecord& record : trace_.records) {
    if (record.kind == RecordKind::kRun) continue;
    ++steps_;
    check.step(record, trace_.reads(record), trace_.writes(record));
    if (check.fixes()->fixes().size() > fixes.size()) return false;
  }
  static_cast<void>(check.report());  // for its effect: it performs the records that are still deferred
  needed_ = check.fixes()->needed();
  return check.fixes()->fixes().size() == fixes.size();
}

std::vector<RaceFix> FixReduction::kept() const {
  std::vector<RaceFix> result;
  for (std::size_t i = 0; i < fixes_.size(); ++i) {
    if (!left_out_[i]) result.push_back(fixes_[i]);
  }
  return result;
}

// Leaves out all of these fixes, if the rest orders everything; otherwise tries each half. A fix that was kept stays
// needed when others are left out later, because fewer fixes order less.
void FixReduction::leave_out(std::span<const std::size_t> doubtful) {
  if (doubtful.empty()) return;
  if (steps_ >= limit_) {
    untried_ += doubtful.size();
    return;
  }
  for (const std::size_t i : doubtful) left_out_[i] = true;
  if (orders_all(kept())) return;
  for (const std::size_t i : doubtful) left_out_[i] = false;
  if (doubtful.size() == 1) return;
  leave_out(doubtful.first(doubtful.size() / 2));
  leave_out(doubtful.subspan(doubtful.size() / 2));
}

void FixReduction::run(RaceReport& report) {
  report.fixes_needed = true;
  if (report.fixes.size() < 2) return;
  fixes_ = report.fixes;
  left_out_.assign(fixes_.size(), false);
  static_cast<void>(orders_all(fixes_));
  limit_ = steps_ * kMaxPasses + kMinSteps;
  std::vector<std::size_t> doubtful;  // one pass proves for most fixes that they are needed; these are the rest
  for (std::size_t i = 0; i < fixes_.size(); ++i) {
    if (i >= needed_.size() || !needed_[i]) doubtful.push_back(i);
  }
  leave_out(doubtful);
  report.fixes = kept();
  report.fixes_untried = untried_;
  report.fixes_needed = untried_ == 0;
}

RaceReport check_races(const TraceData& trace, bool by_op, NeededEdges* needed) {
  RaceCheck check(by_op, needed);
  describe_buffers(check, trace);
  for (std::size_t i = 0; i < trace.records.size(); ++i) {
    const TraceRecord& record = trace.records[i];
    if (record.kind == RecordKind::kRun) continue;
    if (needed) needed->current_record = static_cast<std::uint32_t>(i);
    check.step(record, trace.reads(record), trace.writes(record));
  }
  RaceReport report = check.report();
  report.dropped = trace.dropped;
  FixReduction(trace, by_op).run(report);
  return report;
}

void name_streams(RaceReport& report, const StreamNames& names) {
  const auto name = [&names](OpPlace& place) { place.stream_name = names.of(place.stream); };
  for (Race& race : report.races) name(race.first), name(race.second);
  for (RaceFix& fix : report.fixes) name(fix.after), name(fix.before);
}

bool is_clean_without(const TraceData& trace, const std::vector<bool>& left_out) {
  RaceCheck check;
  describe_buffers(check, trace);
  for (std::size_t i = 0; i < trace.records.size() && check.is_clean(); ++i) {
    const TraceRecord& record = trace.records[i];
    if (!left_out[i]) check.step(record, trace.reads(record), trace.writes(record));
  }
  return check.report().races.empty();
}

}  // namespace slip::watch

namespace slip {
using namespace watch;

RaceReport check_races(const TraceData& trace) {
  RaceReport report = watch::check_races(trace, false, nullptr);
  watch::name_streams(report, StreamNames(trace.of({RecordKind::kStreamOpen})));
  return report;
}

}  // namespace slip
