#include "flow/weights/streamed_pass.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "flow/costs/measuring.hpp"
#include "flow/weights/recurrence.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

const Kernel kUse{"use of weights", [](const Args&) {}};

}  // namespace

std::uint32_t UseLog::add(std::uint32_t group) {
  const auto use = static_cast<std::uint32_t>(order_.size());
  if (order_.size() == max_uses_) overflow_ = true;
  else order_.push_back({group, use});
  return use;
}

StreamedPass::StreamedPass(std::string name, UseOrder order, std::vector<Picos> times, const GroupCatalog& catalog,
                           const Costs& links)
    : name_(std::move(name)), order_(std::move(order)), times_(std::move(times)), costs_(links) {
  make_graph(catalog);
}

void StreamedPass::change_order(const UseOrder& order, const GroupCatalog& catalog) {
  std::map<std::uint32_t, std::vector<Picos>> known;  // by group, in the order of its uses
  std::map<std::uint32_t, std::size_t> uses;          // by group: of the new order, so far
  for (std::size_t i = 0; i < order_.size(); ++i) known[order_[i].group].push_back(times_[i]);
  order_ = order;
  times_.clear();
  for (const OrderedUse& use : order_) {
    const std::vector<Picos>& times = known[use.group];
    const std::size_t number = uses[use.group]++;
    times_.push_back(times.empty() ? 0 : times[std::min(number, times.size() - 1)]);
  }
  make_graph(catalog);
}

// Costs finds the sample of an op by the op's weight bytes and flops. So ops with different times get different numbers
// as flops.
void StreamedPass::make_graph(const GroupCatalog& catalog) {
  graph_ = Graph({.join_bytes = 0});
  groups_.clear();
  costs_.samples.clear();
  std::map<std::uint32_t, Value> values;  // by group
  std::map<std::uint32_t, int> uses;      // by group
  std::map<Picos, std::uint64_t> flops;   // by time
  std::vector<std::uint32_t> open;        // uses that have not ended
  for (std::uint32_t i = 0; i < order_.size(); ++i) {
    const std::uint32_t group = order_[i].group;
    if (!values.contains(group)) {
      values.emplace(group, graph_.weight(catalog.name(group), DataType::kU8, {catalog[group].bytes}));
      groups_.push_back(group);
    }
    std::erase_if(open, [&](std::uint32_t use) { return order_[use].last < i; });
    open.push_back(i);
    const Picos time = std::max<Picos>(times_[i], 1);
    GraphOp op{.name = catalog.name(group), .kernel = &kUse};
    if (const int before = uses[group]++; before > 0) op.name += fmt::format(" (use {})", before + 1);
    op.cost.flops = flops.emplace(time, flops.size() + 1).first->second;
    std::vector<std::uint32_t> read;
    for (const std::uint32_t use : open) read.push_back(order_[use].group);
    std::ranges::sort(read);
    read.erase(std::unique(read.begin(), read.end()), read.end());
    for (const std::uint32_t one : read) op.reads.push_back(graph_.all_of(values.at(one)));
    const CostSample sample = sample_of(graph_, op, time);
    const auto same = [&](const CostSample& other) { return same_size(sample, other); };
    if (std::ranges::none_of(costs_.samples, same)) costs_.samples.push_back(sample);
    graph_.add_op(std::move(op));
  }
}

void StreamedPass::plan(const GroupCatalog& catalog, const StreamerMemory& memory) {
  WeightsPlan made;
  made.groups = make_weight_groups(graph_);
  made.value_offsets.assign(graph_.values().size(), 0);
  made.resident_bytes = memory.resident_bytes;
  made.ring_bytes = memory.ring_bytes;
  made.slot_bytes = memory.slot_bytes;
  for (WeightGroup& planned : made.groups) {
    const WeightGroup& group = catalog[group_of(planned)];
    planned.resident = group.resident;
    planned.offset = group.resident ? group.offset : 0;
    planned.from_disk = group.from_disk;
    planned.compressed_bytes = group.compressed_bytes;
  }
  // Uses of a group that are near each other share a load. If the ring is too small for that, only uses in consecutive
  // ops share one.
  for (const std::uint32_t near : {kNearOps, std::uint32_t{1}}) {
    made.loads = make_loads(made.groups, near);
    std::erase_if(made.loads, [&](const WeightLoad& load) { return made.groups[load.group].in_place(); });
    if (lay_ring(made.groups, made.loads, memory.ring_bytes)) break;
    made.loads.clear();  // nothing is planned: uses that do not fit at the same time are loaded on demand
  }
  set_times(made, step_costs_of(graph_, costs_, made.groups));
  plan_ = std::move(made);
}

void StreamedPass::make_table(Range ring) {
  table_ = make_pass_table(plan_, ring, order_.size());
  for (PlannedLoad& load : table_.loads) load.group = group_of(plan_.groups[load.group]);
  for (std::size_t i = 0; i < order_.size(); ++i) table_.uses[i].group = order_[i].group;
}

bool PassHistory::is_new_order(const UseOrder& planned, const UseOrder& order) {
  if (order == planned || order.empty()) {
    earlier_.clear();
    return false;
  }
  const bool again = order == earlier_;
  if (again) earlier_.clear();
  else earlier_ = order;
  return again;
}

void PassHistory::measure(std::size_t uses, StreamRef stream) {
  if (state_ != State::kIdle) return;
  if (spans_.size() < uses) {
    spans_.resize(uses);
    for (Span& span : spans_) {
      stream.record(span.begin);
      stream.record(span.end);
    }
  }
  try {
    for (const Span& span : spans_) {
      if (!span.begin.query() || !span.end.query()) return;
    }
  } catch (const Error&) {  // a stream that recorded some events has failed: make new events in the next step
    spans_.clear();
    return;
  }
  for (Span& span : spans_) span.ended = false;
  uses_ = 0;
  state_ = State::kRecording;
}

std::optional<std::vector<Picos>> PassHistory::take_times() {
  if (state_ != State::kPending) return std::nullopt;
  std::vector<Picos> times;
  const std::span<const Span> spans = std::span(spans_).first(uses_);
  try {
    for (const Span& span : spans) {
      if (span.ended && !span.end.query()) return std::nullopt;
    }
    for (const Span& span : spans)
      times.push_back(span.ended ? std::max<Picos>((span.end - span.begin).count() * 1000, 1) : 0);
  } catch (const Error&) {  // a stream has failed
    times.clear();
  }
  state_ = State::kIdle;
  return times;
}

}  // namespace slip::flow
