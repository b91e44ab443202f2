#include "watch/superfluous.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>

#include "watch/ops_of_streams.hpp"
#include "watch/race_check.hpp"
#include "watch/replay.hpp"

namespace slip {
namespace {

// All waits of one line of the source: one can go only if none of its times is needed. Where the source is not known,
// those between two streams.
struct Group {
  std::vector<std::uint32_t> records;
  bool needed = false;
  bool implied = true;
};
using WaitKey = std::tuple<std::string_view, std::int32_t, std::uint64_t, std::uint64_t>;
using BarrierKey = std::tuple<std::string_view, std::int32_t, std::string_view>;  // of the legacy stream's op

class Finder {
 public:
  Finder(const TraceData& trace, std::span<const TraceSpan> spans) : trace_(trace), spans_(spans), ops_(spans) {
    for (const TraceRecord& record : trace.records) {
      if (record.kind == RecordKind::kStreamOpen && record.name == "legacy") legacy_.insert(record.stream);
    }
  }

  Superfluous find(const Needs& needs) {
    for (const Needs::Edge& edge : needs.edges()) sort_in(edge);
    Superfluous result;
    for (const auto& [key, group] : waits_) {
      if (!group.needed && !group.records.empty()) result.waits.push_back(wait_of(group));
    }
    for (const auto& [key, group] : barriers_) {
      if (!group.needed && !group.records.empty()) result.legacy_barriers.push_back(barrier_of(group));
    }
    const auto dearest = [](const auto& a, const auto& b) { return a.cost > b.cost; };
    std::stable_sort(result.waits.begin(), result.waits.end(), dearest);
    std::stable_sort(result.legacy_barriers.begin(), result.legacy_barriers.end(), dearest);
    return result;
  }

 private:
  void sort_in(const Needs::Edge& edge) {
    const TraceRecord& record = trace_.records[edge.record];
    Group* group = nullptr;
    if (record.kind == RecordKind::kEventWait) {
      const bool known = !record.file.empty();
      group = &waits_[{record.file, record.line, known ? 0 : record.other_stream, known ? 0 : record.stream}];
    } else if (record.kind == RecordKind::kBarrier && record.name.empty()) {  // named ones are the runtime's own
      const TraceSpan* op = legacy_op(record);
      if (!op) return;
      group = &barriers_[{op->file, op->line, op->name}];
    } else {
      return;
    }
    group->needed = group->needed || edge.needed;
    group->implied = group->implied && edge.implied;
    // A wait with nothing behind it costs nothing, and may be there for somebody whom the trace does not show.
    if (edge.held || (edge.implied && ops_.first_after(record.stream, record.sequence)))
      group->records.push_back(edge.record);
  }

  const TraceSpan* legacy_op(const TraceRecord& barrier) const {
    if (legacy_.contains(barrier.stream)) return ops_.first_after(barrier.stream, barrier.sequence);
    if (legacy_.contains(barrier.other_stream)) return ops_.last_until(barrier.other_stream, barrier.other_position);
    return nullptr;
  }
  OpPlace after(const TraceRecord& record) const {
    const TraceSpan* op = ops_.last_until(record.other_stream, record.other_position);
    return op ? place_of(*op) : OpPlace{.stream = record.other_stream};
  }
  OpPlace before(const TraceRecord& record) const {
    const TraceSpan* op = ops_.first_after(record.stream, record.sequence);
    return op ? place_of(*op) : OpPlace{.stream = record.stream};
  }

  SuperfluousWait wait_of(const Group& group) {
    const TraceRecord& first = trace_.records[group.records.front()];
    return {after(first), before(first), first.file, first.line, group.records.size(), group.implied, cost_of(group)};
  }
  // Rather an op that the legacy stream's held than one that held the legacy stream's.
  FalseDependency barrier_of(const Group& group) {
    const auto out = std::find_if(group.records.begin(), group.records.end(),
                                  [&](std::uint32_t i) { return !legacy_.contains(trace_.records[i].stream); });
    const TraceRecord& shown = trace_.records[out != group.records.end() ? *out : group.records.front()];
    return {before(shown), after(shown), false, group.records.size(), cost_of(group)};
  }

  // Whether at some time the wait ended last of all that held an op.
  bool was_felt(const Group& group) const {
    return std::any_of(group.records.begin(), group.records.end(), [&](std::uint32_t i) {
      const TraceRecord& record = trace_.records[i];
      const TraceSpan* held = ops_.first_after(record.stream, record.sequence);
      const TraceSpan* by = ops_.last_until(record.other_stream, record.other_position);
      return held && by && held->run && by->run && by->ended > held->queued;
    });
  }
  Picos cost_of(const Group& group) {
    if (group.implied || trials_ >= kMostTrials || !was_felt(group)) return 0;
    if (!replay_) {
      replay_.emplace(trace_, spans_);
      length_ = replay_->length();
    }
    trials_ += trace_.records.size();
    ReplayChange change;
    change.left_out.resize(trace_.records.size());
    for (const std::uint32_t i : group.records) change.left_out[i] = true;
    return std::max<Picos>(0, length_ - replay_->length(change));
  }

  const TraceData& trace_;
  std::span<const TraceSpan> spans_;
  OpsOfStreams ops_;
  std::unordered_set<std::uint64_t> legacy_;
  std::map<WaitKey, Group> waits_;
  std::map<BarrierKey, Group> barriers_;
  std::optional<Replay> replay_;
  Picos length_ = 0;
  std::uint64_t trials_ = 0;
};

}  // namespace

Superfluous find_superfluous(const TraceData& trace, std::span<const TraceSpan> spans, const Needs& needs) {
  return Finder(trace, spans).find(needs);
}

}  // namespace slip
