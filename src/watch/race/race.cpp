#include "slip/race.hpp"

#include <fmt/format.h>

#include <array>
#include <map>
#include <mutex>
#include <tuple>

#include "base/sync.hpp"
#include "runtime/core.hpp"
#include "watch/race/race_check.hpp"

namespace slip {

namespace {

// Names of files with their lengths: to measure a path anew for every op would be felt. They are the program's own and
// stay.
class Files {
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

}  // namespace

struct RaceChecker::State {
  SpinLock lock;
  RaceCheck check;  // guarded by lock
  Files files;      // guarded by lock
};

RaceChecker::RaceChecker() : state_(std::make_unique<State>()) {
  attach(*this);
  attached_ = true;
}

RaceChecker::~RaceChecker() { stop(); }

void RaceChecker::stop() {
  if (attached_) detach(*this);
  attached_ = false;
}

namespace {

TraceRange trace_range(const Range& range) { return {range.id, range.offset, range.bytes}; }

// The ranges of an op as trace ranges: on the stack, unless there are very many.
class RangeList {
 public:
  explicit RangeList(const Ranges& ranges) : count_(ranges.size()) {
    if (count_ > few_.size()) many_.resize(count_);
    for (std::size_t i = 0; i < count_; ++i) data()[i] = trace_range(ranges[i]);
  }
  std::span<const TraceRange> list() { return {data(), count_}; }

 private:
  TraceRange* data() { return count_ > few_.size() ? many_.data() : few_.data(); }
  std::size_t count_;
  std::array<TraceRange, 8> few_;
  std::vector<TraceRange> many_;
};

TraceRecord trace_record(const Record& record) {
  TraceRecord result{.kind = record.kind,
                     .whole_device = record.whole_device,
                     .device = record.device,
                     .line = record.here.line,
                     .stream = record.stream,
                     .position = record.position,
                     .other_stream = record.other_stream,
                     .other_position = record.other_position,
                     .thread = record.thread,
                     .range = trace_range(record.range),
                     .name = record.name.text()};
  if (record.op) {
    result.op = record.op->kind;
    result.opaque = record.op->opaque;
    result.value = record.op->value;
  }
  return result;
}

}  // namespace

namespace {

// Wrapped memory is known by its address: the program may have wrapped the same bytes before.
void describe(RaceCheck& check, const Range& range) {
  check.name_buffer(range.id, range.block->name.text());
  if (!range.block->owned) check.mark_wrapped(range.id, reinterpret_cast<std::uintptr_t>(range.block->data), 0);
}

}  // namespace

void RaceChecker::on(const Record& record) {
  if (record.kind == RecordKind::kRun) return;  // when it ran does not matter, only what orders it
  TraceRecord step = trace_record(record);
  const bool submits = record.kind == RecordKind::kSubmit && record.op;
  RangeList reads(submits ? record.op->reads : Ranges()), writes(submits ? record.op->writes : Ranges());
  const std::lock_guard lock(state_->lock);
  step.file = state_->files.text(record.here.file);
  if (submits) {
    for (const Ranges& ranges : {record.op->reads, record.op->writes}) {
      for (const Range& range : ranges) describe(state_->check, range);
    }
  } else if (record.range.id != 0 && record.range.block) {
    describe(state_->check, record.range);
  }
  state_->check.step(step, reads.list(), writes.list());
}

RaceReport RaceChecker::report() const {
  const std::lock_guard lock(state_->lock);
  return state_->check.report();
}

namespace {

void describe_buffers(RaceCheck& check, const TraceData& trace) {
  for (const TraceBuffer& buffer : trace.buffers) {
    check.name_buffer(buffer.id, buffer.name);
    if (buffer.kind != MemoryKind::kDevice) check.mark_host_memory(buffer.id);
    // A trace may hold several processes, in which an address means different bytes; their devices differ.
    if (buffer.address != 0) check.mark_wrapped(buffer.id, buffer.address, buffer.device);
  }
}

}  // namespace

// Whether the trace is without a race that these edges do not order.
bool FixReduction::mends(const std::vector<RaceFix>& fixes) {
  RaceCheck check(by_op_);
  check.assume(fixes);
  describe_buffers(check, trace_);
  steps_ += fixes.size();
  for (const TraceRecord& record : trace_.records) {
    if (record.kind == RecordKind::kRun) continue;
    ++steps_;
    check.step(record, trace_.reads(record), trace_.writes(record));
    if (check.mending()->fixes().size() > fixes.size()) return false;
  }
  static_cast<void>(check.report());  // what still stood still goes on
  needed_ = check.mending()->needed();
  return check.mending()->fixes().size() == fixes.size();
}

std::vector<RaceFix> FixReduction::kept() const {
  std::vector<RaceFix> result;
  for (std::size_t i = 0; i < fixes_.size(); ++i) {
    if (!left_out_[i]) result.push_back(fixes_[i]);
  }
  return result;
}

// Leaves out all of these, if the rest orders everything; otherwise it tries each half. What was kept stays needed when
// others are left out later, since fewer fixes order less.
void FixReduction::leave_out(std::span<const std::size_t> doubtful) {
  if (doubtful.empty()) return;
  if (steps_ >= limit_) {
    untried_ += doubtful.size();
    return;
  }
  for (const std::size_t i : doubtful) left_out_[i] = true;
  if (mends(kept())) return;
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
  static_cast<void>(mends(fixes_));
  limit_ = steps_ * kMaxLooks + kFewSteps;
  std::vector<std::size_t> doubtful;  // most are known to be needed after this one look
  for (std::size_t i = 0; i < fixes_.size(); ++i) {
    if (i >= needed_.size() || !needed_[i]) doubtful.push_back(i);
  }
  leave_out(doubtful);
  report.fixes = kept();
  report.fixes_untried = untried_;
  report.fixes_needed = untried_ == 0;
}

RaceReport check_races(const TraceData& trace, bool by_op, Needs* needs) {
  RaceCheck check(by_op, needs);
  describe_buffers(check, trace);
  for (std::size_t i = 0; i < trace.records.size(); ++i) {
    const TraceRecord& record = trace.records[i];
    if (record.kind == RecordKind::kRun) continue;
    if (needs) needs->record = static_cast<std::uint32_t>(i);
    check.step(record, trace.reads(record), trace.writes(record));
  }
  RaceReport report = check.report();
  report.dropped = trace.dropped;
  FixReduction(trace, by_op).run(report);
  return report;
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

RaceReport check_races(const TraceData& trace) { return check_races(trace, false, nullptr); }

namespace {

std::string place(const OpPlace& side) {
  return side.file.empty() ? std::string() : fmt::format(" ({}:{})", side.file, side.line);
}

std::string where(const OpPlace& side) {
  return side.stream == 0 ? std::string("on the host") : fmt::format("in stream {}", side.stream);
}

std::string text_of(const RaceFix& fix) {
  const RaceSide& after = fix.after;
  const RaceSide& before = fix.before;
  if (after.stream == 0)
    return fmt::format("end the host's {}{} before '{}'{} is issued", after.name == kOpenView ? "view" : "access",
                       place(after), before.name, place(before));
  const std::string record =
      fmt::format("record an event in stream {} after '{}'{}", after.stream, after.name, place(after));
  if (before.stream == 0)
    return fmt::format("{}, and synchronise it before the host's access{}", record, place(before));
  return fmt::format("{}, and make stream {} wait for it before '{}'{}", record, before.stream, before.name,
                     place(before));
}

// Edges between the same two lines of the source are told once, with the streams of the first.
std::string text_of(const RaceReport& report) {
  const std::vector<RaceFix>& fixes = report.fixes;
  if (fixes.empty()) return {};
  using Source = std::tuple<std::string_view, std::int32_t, std::string_view>;
  const auto source_of = [](const OpPlace& op) {
    return Source{op.file, op.line, op.file.empty() ? op.name : std::string_view()};
  };
  std::map<std::pair<Source, Source>, std::size_t> counts;
  for (const RaceFix& fix : fixes) ++counts[{source_of(fix.after), source_of(fix.before)}];
  std::string list;
  std::size_t shown = 0;
  for (const RaceFix& fix : fixes) {
    const auto count = counts.find({source_of(fix.after), source_of(fix.before)});
    if (count == counts.end()) continue;  // told before
    const std::string more = count->second > 1 ? fmt::format(" (and so for {} more)", count->second - 1) : "";
    list += fmt::format("  {}. {}{}\n", ++shown, text_of(fix), more);
    counts.erase(count);
  }
  if (shown == 1) return "fix: one edge orders every conflict\n" + list;
  std::string how = report.fixes_needed ? ", and none of them can be left out" : "";
  if (report.fixes_untried > 0)
    how = fmt::format("; the check stopped at its limit of work before it tried whether {} of {} could be left out",
                      report.fixes_untried, fixes.size());
  return fmt::format("fix: these {} edges order every conflict{}\n{}", shown, how, list);
}

}  // namespace

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
