#include "slip/race.hpp"

#include <fmt/format.h>

#include <array>
#include <map>

#include "base/biased_lock.hpp"
#include "base/stream_text.hpp"
#include "base/sync.hpp"
#include "runtime/core.hpp"
#include "watch/race/race_check.hpp"
#include "watch/race/trace_checks.hpp"

namespace slip {
namespace {

// Caches the lengths of file names, because a strlen of the path for every op would be measurable. The names are string
// literals of the program, so they stay valid.
class FileNames {
 public:
  std::string_view text(const char* file) {
    if (!file) return {};
    std::string_view& known = known_[reinterpret_cast<std::uintptr_t>(file) / 8 % known_.size()];
    if (known.data() != file) known = file;
    return known;
  }

 private:
  std::array<std::string_view, 64> known_{};
};

TraceRange trace_range(const Range& range) { return {range.id, range.offset, range.bytes}; }

// Replaces the list by the ranges of an op.
std::span<const TraceRange> trace_ranges(const Ranges& ranges, std::vector<TraceRange>& list) {
  list.clear();
  for (const Range& range : ranges) list.push_back(trace_range(range));
  return list;
}

// Initialises all fields: g++ would clear the record before it sets some of them, which takes a tenth of the check.
TraceRecord trace_record(const Record& record) {
  const Op* const op = record.op;
  return {.kind = record.kind,
          .engine = record.engine,
          .op = op ? op->kind : OpKind::kKernel,
          .opaque = op && op->opaque,
          .whole_device = record.whole_device,
          .annotation = false,
          .device = record.device,
          .queue = record.queue,
          .line = record.here.line,
          .value = op ? op->value : 0,
          .reads = 0,
          .writes = 0,
          .sequence = 0,
          .stream = record.stream,
          .position = record.position,
          .other_stream = record.other_stream,
          .other_position = record.other_position,
          .thread = record.thread,
          .first_range = 0,
          .bytes = 0,
          .queued = record.queued,
          .started = record.started,
          .ended = record.ended,
          .cost = {},
          .range = trace_range(record.range),
          .name = record.name.text(),
          .file = {}};
}

// Wrapped memory is identified by its address, because the program may wrap the same bytes more than once.
void describe(watch::RaceCheck& check, const Range& range) {
  check.name_buffer(range.id, range.block->name.text());
  if (!range.block->owned) check.mark_wrapped(range.id, reinterpret_cast<std::uintptr_t>(range.block->data), 0);
}

std::string place(const OpPlace& side) {
  return side.file.empty() ? std::string() : fmt::format(" ({}:{})", side.file, side.line);
}

std::string where(const OpPlace& side) {
  return side.stream == 0 ? std::string("on the host") : "in " + base::stream_text(side.stream, side.stream_name);
}

std::string text_of(const RaceFix& fix) {
  const RaceSide& after = fix.after;
  const RaceSide& before = fix.before;
  if (after.stream == 0)
    return fmt::format("end the host's {}{} before '{}'{} is issued",
                       after.name == watch::kOpenView ? "view" : "access", place(after), before.name, place(before));
  const std::string record = fmt::format("record an event {} after '{}'{}", where(after), after.name, place(after));
  if (before.stream == 0)
    return fmt::format("{}, and synchronise it before the host's access{}", record, place(before));
  return fmt::format("{}, and make {} wait for it before '{}'{}", record,
                     base::stream_text(before.stream, before.stream_name), before.name, place(before));
}

// Edges between the same two source lines are reported once, with the streams of the first edge.
std::string text_of(const RaceReport& report) {
  const std::vector<RaceFix>& fixes = report.fixes;
  if (fixes.empty()) return {};
  std::map<std::pair<watch::SourceLine, watch::SourceLine>, std::size_t> counts;
  for (const RaceFix& fix : fixes) ++counts[{watch::source_of(fix.after), watch::source_of(fix.before)}];
  std::string list;
  std::size_t listed = 0;
  for (const RaceFix& fix : fixes) {
    const auto count = counts.find({watch::source_of(fix.after), watch::source_of(fix.before)});
    if (count == counts.end()) continue;  // already reported
    const std::string more = count->second > 1 ? fmt::format(" (and so for {} more)", count->second - 1) : "";
    list += fmt::format("  {}. {}{}\n", ++listed, text_of(fix), more);
    counts.erase(count);
  }
  if (listed == 1) return "fix: one edge orders every conflict\n" + list;
  std::string how = report.fixes_needed ? ", and none of them can be left out" : "";
  if (report.fixes_untried > 0)
    how = fmt::format("; the check stopped at its limit of work before it tried whether {} of {} could be left out",
                      report.fixes_untried, fixes.size());
  return fmt::format("fix: these {} edges order every conflict{}\n{}", listed, how, list);
}

}  // namespace

struct RaceChecker::State {
  base::BiasedLock lock;
  watch::RaceCheck check SLIP_GUARDED_BY(lock);
  FileNames files SLIP_GUARDED_BY(lock);
  watch::StreamNames streams SLIP_GUARDED_BY(lock);
  std::vector<TraceRange> reads SLIP_GUARDED_BY(lock), writes SLIP_GUARDED_BY(lock);  // of the current op
};

RaceChecker::RaceChecker() : state_(std::make_unique<State>()) {
  attach_observer(*this);
  attached_ = true;
}

RaceChecker::~RaceChecker() { stop(); }

void RaceChecker::stop() {
  if (attached_) detach_observer(*this);
  attached_ = false;
}

void RaceChecker::on(const Record& record) {
  if (record.kind == RecordKind::kRun) return;  // only the order of ops matters, not when they ran
  TraceRecord step = trace_record(record);
  const bool submits = record.kind == RecordKind::kSubmit && record.op;
  const base::LockGuard lock(state_->lock);
  std::span<const TraceRange> reads, writes;
  step.file = state_->files.text(record.here.file);
  if (submits) {
    reads = trace_ranges(record.op->reads, state_->reads);
    writes = trace_ranges(record.op->writes, state_->writes);
    for (const Ranges& ranges : {record.op->reads, record.op->writes}) {
      for (const Range& range : ranges) describe(state_->check, range);
    }
  } else if (record.range.id != 0 && record.range.block) {
    describe(state_->check, record.range);
  } else if (record.kind == RecordKind::kStreamOpen) {
    state_->streams.open(record.stream, record.name.text());  // the text of a Name is never deleted
  } else if (record.kind == RecordKind::kStreamClose) {
    state_->streams.close(record.stream);
  }
  state_->check.step(step, reads, writes);
}

RaceReport RaceChecker::report() const {
  const base::LockGuard lock(state_->lock);
  RaceReport report = state_->check.report();
  watch::name_streams(report, state_->streams);
  return report;
}

std::string OpPlace::text() const { return fmt::format("'{}' {}{}", name, where(*this), place(*this)); }

std::string RaceReport::text() const {
  std::string result;
  for (std::size_t i = 0; i < races.size(); ++i) {
    const Race& race = races[i];
    result += fmt::format("race {} of {}: bytes {} to {} of buffer '{}'{}\n", i + 1, races.size(), race.offset,
                          race.offset + race.bytes, race.buffer_name,
                          race.times > 1 ? fmt::format(", {} times", race.times) : "");
    for (const RaceSide* side : {&race.first, &race.second})
      result += fmt::format("  '{}' {} them {}{}\n", side->name, side->writes ? "writes" : "reads", where(*side),
                            place(*side));
  }
  result += text_of(*this);
  result +=
      fmt::format("{} in {} ops",
                  races.empty() ? "no race" : fmt::format("{} race{}", races.size(), races.size() > 1 ? "s" : ""), ops);
  if (opaque > 0) result += fmt::format("; {} of them declared no ranges, so nothing is known of them", opaque);
  if (dropped > 0) result += fmt::format("; {} records are missing, so nothing is proven", dropped);
  return result + "\n";
}

}  // namespace slip
