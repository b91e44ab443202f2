#include "watch/op_graph.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "watch/by_number.hpp"

namespace slip {
namespace {

// A stream's nodes in its order. A point (stream, position) covers those with at <= position.
struct StreamNodes {
  struct Item {
    std::uint64_t at;
    std::uint32_t node;
  };
  std::vector<Item> items;
  std::uint64_t told = 0;  // the last position that a record told
  std::uint32_t device = 0;
  bool touched = false;  // since its device was waited for as a whole

  std::uint32_t last() const { return items.empty() ? kNoNode : items.back().node; }
  std::uint32_t at(std::uint64_t position) const {
    // Nearly always one of the last.
    std::size_t known = items.size();
    for (int i = 0; i < 8 && known > 0; ++i, --known) {
      if (items[known - 1].at <= position) return items[known - 1].node;
    }
    const auto later = std::upper_bound(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(known), position,
                                        [](std::uint64_t wanted, const Item& item) { return wanted < item.at; });
    return later == items.begin() ? kNoNode : std::prev(later)->node;
  }
};

class Builder {
 public:
  Builder(const TraceData& trace, std::span<const TraceSpan> spans) : records_(trace.records), spans_(spans) {
    graph_.nodes.reserve(spans.size() + spans.size() / 2);
    graph_.node_of.resize(spans.size(), kNoNode);
  }

  OpGraph build() {
    add_unsubmitted();
    std::uint32_t span = 0;
    for (std::uint32_t i = 0; i < records_.size(); ++i) {
      const TraceRecord& record = records_[i];
      switch (record.kind) {
        case RecordKind::kSubmit: submit(span++, i); break;
        case RecordKind::kEventRecord: tell(streams_[record.stream], record.position); break;
        case RecordKind::kEventWait: wait(NodeKind::kEvent, i); break;
        case RecordKind::kBarrier: wait(NodeKind::kBarrier, i); break;
        case RecordKind::kSync:
        case RecordKind::kQuery: sync(i); break;
        default: break;
      }
    }
    return std::move(graph_);
  }

 private:
  struct Thread {
    bool known = false;
    std::uint32_t slot = 0;
    std::uint32_t sync = kNoNode;
  };
  struct DeviceJoin {
    std::vector<StreamNodes*> touched;
    std::uint32_t join = kNoNode;
  };

  std::uint32_t add(const OpNode& node) {
    graph_.nodes.push_back(node);
    return static_cast<std::uint32_t>(graph_.nodes.size() - 1);
  }
  static void tell(StreamNodes& stream, std::uint64_t position) { stream.told = std::max(stream.told, position); }
  void append(StreamNodes& stream, std::uint32_t device, std::uint64_t at, std::uint32_t node) {
    // In order, so that points can be found, also where a damaged file says otherwise.
    stream.items.push_back({stream.items.empty() ? at : std::max(at, stream.items.back().at), node});
    if (stream.touched) return;
    stream.touched = true;
    devices_[device].touched.push_back(&stream);
  }
  void add_op(std::uint32_t span, std::uint32_t record, Thread* thread) {
    const TraceSpan& op = spans_[span];
    StreamNodes& stream = streams_[op.stream];
    const std::uint32_t node = add({.span = span,
                                    .record = record,
                                    .prev = stream.last(),
                                    .other = thread ? thread->sync : kNoNode,
                                    .before = thread ? graph_.thread_last[thread->slot] : kNoNode,
                                    .thread = thread ? thread->slot : 0});
    graph_.node_of[span] = node;
    append(stream, op.device, op.position, node);
    tell(stream, op.position);
    if (thread) graph_.thread_last[thread->slot] = node;
  }

  Thread& thread_of(const TraceRecord& record) {
    Thread& thread = threads_[record.thread];
    if (!thread.known) {
      thread.known = true;
      thread.slot = static_cast<std::uint32_t>(graph_.thread_last.size());
      graph_.thread_last.push_back(kNoNode);
    }
    return thread;
  }

  void add_unsubmitted();
  void submit(std::uint32_t span, std::uint32_t record);
  void wait(NodeKind kind, std::uint32_t record);
  void sync(std::uint32_t record);
  std::uint32_t record_of_run(std::uint32_t span) const {
    return static_cast<std::uint32_t>(spans_[span].run - records_.data());
  }

  const std::vector<TraceRecord>& records_;
  std::span<const TraceSpan> spans_;
  OpGraph graph_;
  ByNumber<StreamNodes> streams_;
  ByNumber<Thread> threads_;
  ByNumber<DeviceJoin> devices_;
  // Further runs of a submitted op, such as the second half of a copy over the host, by the op.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint32_t>> further_;
};

// Runs whose submission was not seen come first, in the order of their starts, for the trace began later.
void Builder::add_unsubmitted() {
  std::vector<std::uint32_t> unsubmitted;
  for (std::uint32_t i = 0; i < spans_.size(); ++i) {
    if (!spans_[i].submit) unsubmitted.push_back(i);
  }
  if (unsubmitted.empty()) return;
  std::stable_sort(unsubmitted.begin(), unsubmitted.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return spans_[a].started < spans_[b].started; });
  if (unsubmitted.size() < spans_.size()) {
    for (const std::uint32_t span : unsubmitted) further_[{spans_[span].stream, spans_[span].position}];
    std::vector<std::pair<std::uint64_t, std::uint64_t>> submitted;
    for (const TraceSpan& span : spans_) {
      if (span.submit && further_.contains({span.stream, span.position}))
        submitted.emplace_back(span.stream, span.position);
    }
    std::sort(submitted.begin(), submitted.end());
    further_.clear();
    std::erase_if(unsubmitted, [&](std::uint32_t i) {
      const std::pair key(spans_[i].stream, spans_[i].position);
      if (!std::binary_search(submitted.begin(), submitted.end(), key)) return false;
      further_[key].push_back(i);
      return true;
    });
  }
  for (const std::uint32_t span : unsubmitted) add_op(span, record_of_run(span), nullptr);
  // Their positions, if they have any, say nothing about those to come.
}

void Builder::submit(std::uint32_t span, std::uint32_t record) {
  add_op(span, record, &thread_of(records_[record]));
  if (further_.empty()) return;
  const auto further = further_.find({spans_[span].stream, spans_[span].position});
  if (further == further_.end()) return;
  for (const std::uint32_t run : further->second) add_op(run, record_of_run(run), nullptr);
  further_.erase(further);
}

void Builder::wait(NodeKind kind, std::uint32_t record) {
  const TraceRecord& wait = records_[record];
  if (wait.other_stream == wait.stream) return;
  const std::uint32_t other = streams_[wait.other_stream].at(wait.other_position);
  if (other == kNoNode) return;
  StreamNodes& stream = streams_[wait.stream];
  const std::uint32_t node = add({.record = record, .prev = stream.last(), .other = other, .kind = kind});
  // Points recorded before the wait do not cover it: they are at most what was told by then.
  append(stream, wait.device, stream.told + 1, node);
}

void Builder::sync(std::uint32_t record) {
  const TraceRecord& wait = records_[record];
  std::uint32_t target = kNoNode;
  if (wait.whole_device) {
    DeviceJoin& device = devices_[wait.device];
    for (StreamNodes* stream : device.touched) {
      stream->touched = false;
      device.join = add({.record = record, .prev = device.join, .other = stream->last(), .kind = NodeKind::kDevice});
    }
    device.touched.clear();
    target = device.join;
  } else {
    target = streams_[wait.other_stream].at(wait.other_position);
  }
  if (target == kNoNode) return;
  Thread& thread = thread_of(wait);
  thread.sync =
      add({.record = record, .prev = thread.sync, .other = target, .thread = thread.slot, .kind = NodeKind::kSync});
}

}  // namespace

OpGraph op_graph(const TraceData& trace, std::span<const TraceSpan> spans) { return Builder(trace, spans).build(); }

void OpGraph::predecessors(std::uint32_t span, std::vector<OpEdge>& result) const {
  result.clear();
  const std::uint32_t own = node_of[span];
  // Sources of waits that are waits themselves, with the wait that the op's own stream made.
  std::vector<std::pair<std::uint32_t, OpEdge>> open;
  std::set<std::uint32_t> seen;  // many waits may lead to one
  const auto follow = [&](std::uint32_t node, OpEdge edge) {
    for (; node != kNoNode && nodes[node].kind != NodeKind::kOp; node = nodes[node].prev) {
      if (!seen.insert(node).second) return;
      OpEdge through = edge;
      if (edge.kind == OpEdge::Kind::kStream) {
        through.kind = nodes[node].kind == NodeKind::kEvent ? OpEdge::Kind::kEvent : OpEdge::Kind::kBarrier;
        through.record = nodes[node].record;
      }
      open.emplace_back(nodes[node].other, through);
    }
    if (node == kNoNode) return;
    edge.from = nodes[node].span;
    result.push_back(edge);
  };
  follow(nodes[own].prev, {.record = nodes[own].record});
  while (!open.empty()) {
    const auto [node, edge] = open.back();
    open.pop_back();
    follow(node, edge);
  }
}

}  // namespace slip
