#include "slip/verify.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/stream_text.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "watch/race/stalled_streams.hpp"
#include "watch/race/trace_checks.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip {
namespace {

// Converts between a plan and its trace. In a trace, stream ids begin at 1, because 0 is the host. Positions begin at
// 1, too; the position of an op is its index in the plan plus one.
std::uint64_t position_of(std::uint32_t op) { return op + 1; }
std::uint32_t op_at(std::uint64_t position) { return static_cast<std::uint32_t>(position - 1); }
std::uint64_t stream_of(const PlanNode& node) { return node.stream + 1; }

// The trace that a recording of the plan would contain if its ops were issued in this order.
class PlanTrace {
 public:
  PlanTrace(const Plan& plan, const std::vector<std::uint32_t>& order) {
    for (const std::uint32_t op : order) add(plan, op);
    watch::normalise(data);
  }
  TraceData data;
  std::vector<Verification::Wait> waits;  // by record index; empty for records that are not waits

 private:
  void add(const Plan& plan, std::uint32_t op) {
    const PlanNode& node = plan.nodes()[op];
    for (const std::uint32_t other : node.waits) {
      TraceRecord& wait = next(RecordKind::kEventWait, node, op);
      wait.other_stream = stream_of(plan.nodes()[other]);
      wait.other_position = position_of(other);
      waits.back() = {op, other};
    }
    TraceRecord& submit = next(RecordKind::kSubmit, node, op);
    submit.op = node.kind;
    submit.opaque = node.opaque;
    submit.value = node.value;
    submit.first_range = data.ranges.size();
    submit.reads = add_ranges(node.reads);
    submit.writes = add_ranges(node.writes);
  }
  TraceRecord& next(RecordKind kind, const PlanNode& node, std::uint32_t op) {
    waits.emplace_back();
    data.records.push_back({.kind = kind,
                            .line = node.here.line,
                            .sequence = data.records.size() + 1,
                            .stream = stream_of(node),
                            .position = position_of(op),
                            .name = node.name.text(),
                            .file = node.here.file ? node.here.file : ""});
    return data.records.back();
  }
  std::uint32_t add_ranges(const std::vector<Range>& ranges) {
    for (const Range& range : ranges) {
      data.ranges.push_back({range.id, range.offset, range.bytes});
      const runtime::Block& block = *range.block;
      data.buffers.push_back({.id = range.id,
                              .kind = block.kind,
                              .bytes = block.bytes,
                              .name = block.name.text(),
                              .address = block.owned ? 0 : reinterpret_cast<std::uintptr_t>(block.data)});
    }
    return static_cast<std::uint32_t>(ranges.size());
  }
};

// Returns the ops that each op waits for. Adds to `unknown` the ops that wait for a flag if no op of the plan writes a
// value that ends the wait.
std::vector<watch::OpWaits> waits_of(const Plan& plan, std::vector<std::uint32_t>& unknown) {
  std::map<watch::FlagAddress, std::vector<std::uint32_t>> writers;
  for (std::uint32_t op = 0; op < plan.nodes().size(); ++op) {
    const PlanNode& node = plan.nodes()[op];
    if (node.kind == OpKind::kWriteValue) writers[{node.writes[0].id, node.writes[0].offset}].push_back(op);
  }
  std::vector<watch::OpWaits> result(plan.nodes().size());
  std::vector<std::uint32_t> last(plan.streams(), ~std::uint32_t{0});
  std::map<const void*, std::uint32_t> last_exchange;
  for (std::uint32_t op = 0; op < result.size(); ++op) {
    const PlanNode& node = plan.nodes()[op];
    result[op].all = node.waits;
    if (last[node.stream] != ~std::uint32_t{0}) result[op].all.push_back(last[node.stream]);
    last[node.stream] = op;
    if (node.exchange) {  // exchanges of one communicator run one after another
      const auto [place, first] = last_exchange.try_emplace(node.exchange->order_key(), op);
      if (!first) result[op].all.push_back(std::exchange(place->second, op));
    }
    if (node.kind != OpKind::kWaitValue) continue;
    const auto found = writers.find({node.reads[0].id, node.reads[0].offset});
    if (found != writers.end()) {
      // Of each stream, only take the first write that ends the wait: later writes may themselves wait for this op.
      std::vector<bool> has_one(plan.streams());
      for (const std::uint32_t writer : found->second) {
        const PlanNode& write = plan.nodes()[writer];
        if (has_one[write.stream] || !runtime::ends_wait(write.value, node.value)) continue;
        has_one[write.stream] = true;
        result[op].any.push_back(writer);
      }
    }
    if (result[op].any.empty()) unknown.push_back(op);
  }
  watch::remove_later_writers(result);
  return result;
}

// Returns an order in which each op comes after the ops that it waits for, including the writers of its flag. A cycle
// of waits is broken at any op. The plan's own order may have a wait for a flag long before the write.
std::vector<std::uint32_t> run_order(const std::vector<watch::OpWaits>& waits) {
  std::vector<std::uint32_t> order;
  std::vector<bool> begun(waits.size());
  std::vector<std::uint32_t> stack;
  const auto push_missing = [&](const std::vector<std::uint32_t>& list) {
    for (const std::uint32_t other : list) {
      if (!begun[other]) stack.push_back(other);
    }
  };
  std::vector<bool> placed(waits.size());
  for (std::uint32_t op = 0; op < waits.size(); ++op) {
    stack.push_back(op);
    while (!stack.empty()) {
      const std::uint32_t top = stack.back();
      if (!begun[top]) {
        begun[top] = true;
        push_missing(waits[top].all);
        push_missing(waits[top].any);
        continue;
      }
      stack.pop_back();
      if (placed[top]) continue;
      placed[top] = true;
      order.push_back(top);
    }
  }
  return order;
}

void note_races(Verification& result, const RaceReport& report) {
  for (const Race& race : report.races)
    result.races.push_back({op_at(race.first.position), op_at(race.second.position), race.first.writes,
                            race.second.writes, race.buffer_name, race.offset, race.bytes});
  for (const RaceFix& fix : report.fixes)
    result.missing.push_back({op_at(fix.before.position), op_at(fix.after.position)});
}

// Whether the plan has ops with effects that their ranges do not show. Everything ordered around them must stay
// ordered.
bool has_hidden_effects(const Plan& plan) {
  return std::any_of(plan.nodes().begin(), plan.nodes().end(), [](const PlanNode& node) {
    return node.opaque || node.kind == OpKind::kWaitValue || node.kind == OpKind::kWriteValue ||
           (node.kind == OpKind::kExchange && node.reads.empty() && node.writes.empty());
  });
}

// Returns the waits that no conflict needs. If the plan has no hidden effects and is small enough to try, also the
// waits that others make unnecessary.
std::vector<Verification::Wait> superfluous_waits(const Plan& plan, const PlanTrace& trace,
                                                  const watch::NeededEdges& needed) {
  const std::vector<TraceRecord>& records = trace.data.records;
  std::vector<bool> left_out(records.size());
  std::vector<std::uint32_t> kept;
  for (const watch::NeededEdges::Edge& edge : needed.edges()) {
    if (records[edge.record].kind != RecordKind::kEventWait) continue;
    if (edge.needed) kept.push_back(edge.record);
    else left_out[edge.record] = true;
  }
  if (!has_hidden_effects(plan) && kept.size() * records.size() <= watch::kMaxTrialSteps) {
    for (const std::uint32_t wait : kept) {
      left_out[wait] = true;
      left_out[wait] = watch::is_clean_without(trace.data, left_out);
    }
  }
  std::vector<Verification::Wait> result;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (left_out[i]) result.push_back(trace.waits[i]);
  }
  return result;
}

}  // namespace

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kProven: return "proven";
    case Verdict::kRace: return "race";
    case Verdict::kDeadlock: return "deadlock";
    case Verdict::kUnknown: return "unknown";
  }
  return "?";
}

Verification verify(const Plan& plan) {
  Verification result;
  const std::vector<watch::OpWaits> waits = waits_of(plan, result.unknown);
  result.cycle = watch::find_cycle(waits);
  const PlanTrace trace(plan, run_order(waits));
  watch::NeededEdges needed;
  note_races(result, watch::check_races(trace.data, true, &needed));
  for (std::uint32_t op = 0; op < plan.nodes().size(); ++op) {
    if (plan.nodes()[op].opaque) result.unknown.push_back(op);
  }
  std::sort(result.unknown.begin(), result.unknown.end());
  // In a racy plan it is not defined which waits are needed.
  if (result.races.empty()) result.superfluous = superfluous_waits(plan, trace, needed);
  result.verdict = !result.races.empty()     ? Verdict::kRace
                   : !result.cycle.empty()   ? Verdict::kDeadlock
                   : !result.unknown.empty() ? Verdict::kUnknown
                                             : Verdict::kProven;
  return result;
}

std::string Verification::text(const Plan& plan) const {
  const auto op_text = [&plan](std::uint32_t op) {
    const PlanNode& node = plan.nodes()[op];
    const std::string place = node.here.file ? fmt::format(", {}:{}", node.here.file, node.here.line) : std::string();
    return fmt::format("op {} '{}' ({}{})", op, node.name.text(),
                       base::stream_text(node.stream, plan.stream_name(node.stream).text()), place);
  };
  std::string text =
      fmt::format("{}: {} ops in {} streams\n", verdict_name(verdict), plan.nodes().size(), plan.streams());
  for (const Race& race : races)
    text += fmt::format("race: bytes {} to {} of buffer '{}'\n  {} by {}\n  {} by {}\n", race.offset,
                        race.offset + race.bytes, race.buffer, race.first_writes ? "written" : "read",
                        op_text(race.first), race.second_writes ? "written" : "read", op_text(race.second));
  for (const Wait& wait : missing)
    text += fmt::format("fix: {}\n  must wait for {}\n", op_text(wait.op), op_text(wait.other));
  for (std::size_t i = 0; i < cycle.size(); ++i)
    text += fmt::format("{}{}\n", i == 0 ? "deadlock: " : "  waits for ", op_text(cycle[i]));
  if (!cycle.empty()) text += "  which waits for the first\n";
  for (const std::uint32_t op : unknown)
    text += fmt::format("unknown: {}\n",
                        op_text(op) + (plan.nodes()[op].opaque ? " declares no ranges"
                                                               : " waits for a flag that nothing in the plan writes"));
  for (const Wait& wait : superfluous)
    text += fmt::format("superfluous: no two ops need that {} waits for {}\n", op_text(wait.op), op_text(wait.other));
  return text;
}

}  // namespace slip
