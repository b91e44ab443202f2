#include "slip/race.hpp"

#include <fmt/format.h>

#include <array>
#include <mutex>

#include "base/sync.hpp"
#include "runtime/core.hpp"
#include "watch/race_check.hpp"

namespace slip {

struct RaceChecker::State {
  SpinLock lock;
  RaceCheck check;  // guarded by lock
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
                     .name = record.name.text(),
                     .file = record.here.file ? record.here.file : ""};
  if (record.op) {
    result.op = record.op->kind;
    result.opaque = record.op->opaque;
  }
  return result;
}

}  // namespace

void RaceChecker::on(const Record& record) {
  if (record.kind == RecordKind::kRun) return;  // when it ran does not matter, only what orders it
  const TraceRecord step = trace_record(record);
  const bool submits = record.kind == RecordKind::kSubmit && record.op;
  RangeList reads(submits ? record.op->reads : Ranges()), writes(submits ? record.op->writes : Ranges());
  const std::lock_guard lock(state_->lock);
  if (submits) {
    for (const Ranges& ranges : {record.op->reads, record.op->writes}) {
      for (const Range& range : ranges) state_->check.name_buffer(range.id, range.block->name.text());
    }
  }
  state_->check.step(step, reads.list(), writes.list());
}

RaceReport RaceChecker::report() const {
  const std::lock_guard lock(state_->lock);
  return state_->check.report();
}

RaceReport check_races(const TraceData& trace) {
  RaceCheck check;
  for (const TraceBuffer& buffer : trace.buffers) check.name_buffer(buffer.id, buffer.name);
  for (const TraceRecord& record : trace.records) check.step(record, trace.reads(record), trace.writes(record));
  RaceReport report = check.report();
  report.dropped = trace.dropped;
  return report;
}

namespace {

std::string place(const RaceSide& side) {
  return side.file.empty() ? std::string() : fmt::format(" ({}:{})", side.file, side.line);
}

std::string where(const RaceSide& side) {
  return side.stream == 0 ? std::string("on the host") : fmt::format("in stream {}", side.stream);
}

std::string remedy(const Race& race) {
  if (race.first.stream == 0)
    return fmt::format("end the host's access before '{}' is issued, or issue it later", race.second.name);
  if (race.second.stream == 0)
    return fmt::format("record an event in stream {} after '{}' and synchronise it before the host's access",
                       race.first.stream, race.first.name);
  return fmt::format("record an event in stream {} after '{}' and make stream {} wait for it before '{}'",
                     race.first.stream, race.first.name, race.second.stream, race.second.name);
}

}  // namespace

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
    result += fmt::format("  nothing orders the two: {}\n", remedy(race));
  }
  result += fmt::format("{} in {} ops", races.empty() ? "no race" : fmt::format("{} races", races.size()), ops);
  if (opaque > 0) result += fmt::format("; {} of them declared no ranges, so nothing is known of them", opaque);
  if (dropped > 0) result += fmt::format("; {} records are missing, so nothing is proven", dropped);
  return result + "\n";
}

}  // namespace slip
