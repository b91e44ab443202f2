#include "watch/analysis/op_graph.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/backend.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {
namespace {

// The nodes of a stream, in order. A point (stream, position) covers the nodes with at <= position.
struct StreamNodes {
  struct Item {
    std::uint64_t at;
    std::uint32_t node;
  };
  std::vector<Item> items;
  std::uint64_t known = 0;  // the highest position in a record so far
  std::uint32_t device = 0;
  bool touched = false;  // the stream got nodes after the host last waited for its whole device

  std::uint32_t last() const { return items.empty() ? kNoNode : items.back().node; }
  std::uint32_t at(std::uint64_t position) const {
    // The position is nearly always one of the last items.
    std::size_t count = items.size();
    for (int i = 0; i < 8 && count > 0; ++i, --count) {
      if (items[count - 1].at <= position) return items[count - 1].node;
    }
    const auto later = std::upper_bound(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count), position,
                                        [](std::uint64_t wanted, const Item& item) { return wanted < item.at; });
    return later == items.begin() ? kNoNode : std::prev(later)->node;
  }
};

class GraphBuilder {
 public:
  GraphBuilder(const TraceData& trace, std::span<const TraceSpan> spans)
      : records_(trace.records), spans_(spans), foreign_(trace.foreign) {
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
        case RecordKind::kEventRecord: raise_known(streams_[record.stream], record.position); break;
        case RecordKind::kEventWait:
        case RecordKind::kBarrier: wait(i); break;
        case RecordKind::kSync:
        case RecordKind::kQuery: sync(i); break;
        default: break;
      }
    }
    find_flag_writers();
    sort();
    return std::move(graph_);
  }

 private:
  struct HostThread {
    bool known = false;
    std::uint32_t slot = 0;        // index into OpGraph::thread_last
    std::uint32_t sync = kNoNode;  // its last wait
  };
  struct DeviceJoin {
    std::vector<StreamNodes*> touched;  // the streams whose `touched` is set
    std::uint32_t join = kNoNode;       // the last node of the chain of joins
  };

  std::uint32_t add(const OpNode& node) {
    graph_.nodes.push_back(node);
    return static_cast<std::uint32_t>(graph_.nodes.size() - 1);
  }
  static void raise_known(StreamNodes& stream, std::uint64_t position) {
    stream.known = std::max(stream.known, position);
  }
  void append(StreamNodes& stream, std::uint32_t device, std::uint64_t at, std::uint32_t node) {
    // Positions must not decrease, because points are found by binary search. A damaged file may have them out of
    // order.
    stream.items.push_back({stream.items.empty() ? at : std::max(at, stream.items.back().at), node});
    if (stream.touched) return;
    stream.touched = true;
    devices_[device].touched.push_back(&stream);
  }
  // Returns the node before the op in its stream. In traces of other programs, one host call may be nested in another.
  // The nested call then follows the node that the outer call followed.
  std::uint32_t before(const StreamNodes& stream, const TraceSpan& op) const {
    const std::uint32_t last = stream.last();
    // Only a damaged file is foreign and has waits, which have no span.
    if (!foreign_ || last == kNoNode || graph_.nodes[last].kind != NodeKind::kOp) return last;
    const OpNode& node = graph_.nodes[last];
    return spans_[node.span].ended <= op.started ? last : node.prev;
  }
  void add_op(std::uint32_t span, std::uint32_t record, HostThread* thread) {
    const TraceSpan& op = spans_[span];
    StreamNodes& stream = streams_[op.stream];
    const std::uint32_t node = add({.span = span,
                                    .record = record,
                                    .prev = before(stream, op),
                                    .other = thread ? thread->sync : kNoNode,
                                    .before = thread ? graph_.thread_last[thread->slot] : kNoNode,
                                    .thread = thread ? thread->slot : 0});
    graph_.node_of[span] = node;
    append(stream, op.device, op.position, node);
    raise_known(stream, op.position);
    if (thread) graph_.thread_last[thread->slot] = node;
  }

  HostThread& thread_of(const TraceRecord& record) {
    HostThread& thread = threads_[record.thread];
    if (!thread.known) {
      thread.known = true;
      thread.slot = static_cast<std::uint32_t>(graph_.thread_last.size());
      graph_.thread_last.push_back(kNoNode);
    }
    return thread;
  }

  // Runs without a submission come first, sorted by start: they were submitted before the trace began.
  void add_unsubmitted() {
    std::vector<TimeKey> order;
    for (std::uint32_t i = 0; i < spans_.size(); ++i) {
      if (!spans_[i].submit && !spans_[i].annotation) order.push_back({spans_[i].started, i});
    }
    if (order.empty()) return;
    std::vector<std::uint32_t> unsubmitted = indices_by_time(std::move(order));
    if (unsubmitted.size() < spans_.size()) {
      const auto place = [&](std::uint32_t span) { return std::pair(spans_[span].stream, spans_[span].position); };
      std::vector<std::pair<std::uint64_t, std::uint64_t>> ran, submitted;
      std::transform(unsubmitted.begin(), unsubmitted.end(), std::back_inserter(ran), place);
      std::sort(ran.begin(), ran.end());
      for (std::uint32_t i = 0; i < spans_.size(); ++i) {
        if (spans_[i].submit && std::binary_search(ran.begin(), ran.end(), place(i))) submitted.push_back(place(i));
      }
      std::sort(submitted.begin(), submitted.end());
      std::erase_if(unsubmitted, [&](std::uint32_t i) {
        if (!std::binary_search(submitted.begin(), submitted.end(), place(i))) return false;
        further_[place(i)].push_back(i);
        return true;
      });
    }
    for (const std::uint32_t span : unsubmitted) add_op(span, record_of_run(span), nullptr);
  }

  void submit(std::uint32_t span, std::uint32_t record) {
    const TraceSpan& op = spans_[span];
    if (op.kind == OpKind::kWaitValue && !op.reads.empty()) {
      StreamNodes& stream = streams_[op.stream];
      const std::uint32_t node = add({.record = record, .prev = stream.last(), .kind = NodeKind::kWait, .flag = true});
      append(stream, op.device, stream.known + 1, node);
      flags_[{op.reads[0].buffer, op.reads[0].offset}].waits.push_back({node, op.submit->value});
    }
    add_op(span, record, &thread_of(records_[record]));
    if (op.kind == OpKind::kWriteValue && !op.writes.empty())
      flags_[{op.writes[0].buffer, op.writes[0].offset}].writes.push_back({graph_.node_of[span], op.submit->value});
    if (further_.empty()) return;
    const auto further = further_.find({spans_[span].stream, spans_[span].position});
    if (further == further_.end()) return;
    for (const std::uint32_t run : further->second) add_op(run, record_of_run(run), nullptr);
    further_.erase(further);
  }

  void wait(std::uint32_t record) {
    const TraceRecord& wait = records_[record];
    if (wait.other_stream == wait.stream) return;
    const std::uint32_t other = streams_[wait.other_stream].at(wait.other_position);
    if (other == kNoNode) return;
    StreamNodes& stream = streams_[wait.stream];
    const std::uint32_t node = add({.record = record, .prev = stream.last(), .other = other, .kind = NodeKind::kWait});
    // Points recorded before the wait must not cover it. Their positions are at most stream.known.
    append(stream, wait.device, stream.known + 1, node);
  }

  void sync(std::uint32_t record) {
    const TraceRecord& wait = records_[record];
    std::uint32_t target = kNoNode;
    if (wait.whole_device) {
      DeviceJoin& device = devices_[wait.device];
      for (StreamNodes* stream : device.touched) {
        stream->touched = false;
        device.join = add({.record = record, .prev = device.join, .other = stream->last(), .kind = NodeKind::kWait});
      }
      device.touched.clear();
      target = device.join;
    } else {
      target = streams_[wait.other_stream].at(wait.other_position);
    }
    if (target == kNoNode) return;
    HostThread& thread = thread_of(wait);
    thread.sync =
        add({.record = record, .prev = thread.sync, .other = target, .thread = thread.slot, .kind = NodeKind::kSync});
  }

  // Finds the write that ends each wait for a flag. A program writes increasing values; a lower value begins a new
  // count. Writes of an earlier count do not end a wait that was submitted in a later count.
  void find_flag_writers() {
    for (const auto& [address, flag] : flags_) {
      std::size_t submitted = 0;    // number of writes submitted before the wait
      std::size_t count_begin = 0;  // the first write of the current count
      for (const FlagUse& wait : flag.waits) {
        for (; submitted < flag.writes.size() && flag.writes[submitted].node < wait.node; ++submitted) {
          if (submitted > 0 && !runtime::ends_wait(flag.writes[submitted].value, flag.writes[submitted - 1].value))
            count_begin = submitted;
        }
        // The values of a count increase, so binary search finds the first write that ends the wait.
        const auto reaches = [&](const FlagUse& write) { return runtime::ends_wait(write.value, wait.value); };
        const auto first = flag.writes.begin() + static_cast<std::ptrdiff_t>(count_begin),
                   later = flag.writes.begin() + static_cast<std::ptrdiff_t>(submitted);
        auto found = std::partition_point(first, later, [&](const FlagUse& write) { return !reaches(write); });
        if (found == later) found = std::find_if(later, flag.writes.end(), reaches);
        if (found != flag.writes.end()) graph_.nodes[wait.node].other = found->node;
      }
    }
  }

  // Fills `order`: the nodes in the order of the records, but the predecessors of a node before the node. The trace of
  // a deadlocked program, or a damaged file, may contain a cycle. Then the edge of a flag in the cycle is removed.
  void sort() {
    std::vector<Visit> visits(graph_.nodes.size(), Visit::kNew);
    std::vector<std::uint32_t> open;  // a stack: each node is a predecessor of the node below it
    graph_.order.reserve(graph_.nodes.size());
    for (std::uint32_t n = 0; n < visits.size(); ++n) {
      if (visits[n] == Visit::kNew) open.push_back(n);
      while (!open.empty()) {
        const std::uint32_t node = open.back();
        visits[node] = Visit::kOpen;
        const std::uint32_t before = unvisited(graph_.nodes[node], visits);
        if (before == kNoNode) {
          visits[node] = Visit::kDone;
          graph_.order.push_back(node);
          open.pop_back();
        } else if (visits[before] == Visit::kNew) {
          open.push_back(before);
        } else {
          cut_cycle(before, open, visits);
        }
      }
    }
  }
  enum class Visit : std::uint8_t { kNew, kOpen, kDone };
  static std::uint32_t unvisited(const OpNode& node, const std::vector<Visit>& visits) {
    for (const std::uint32_t before : {node.prev, node.other}) {
      if (before != kNoNode && visits[before] != Visit::kDone) return before;
    }
    return kNoNode;
  }
  // The nodes in `open` from `first` to the last one form a cycle. Removes the `other` edge of a flag in the cycle.
  // There is such an edge, because all other edges lead to earlier records.
  void cut_cycle(std::uint32_t first, std::vector<std::uint32_t>& open, std::vector<Visit>& visits) {
    std::uint32_t behind = first;
    while (!open.empty()) {
      const std::uint32_t node = open.back();
      if (graph_.nodes[node].flag && graph_.nodes[node].prev != behind) {
        graph_.nodes[node].other = kNoNode;
        return;
      }
      visits[node] = Visit::kNew;
      open.pop_back();
      behind = node;
    }
  }

  std::uint32_t record_of_run(std::uint32_t span) const {
    return static_cast<std::uint32_t>(spans_[span].run - records_.data());
  }

  const std::vector<TraceRecord>& records_;
  std::span<const TraceSpan> spans_;
  const bool foreign_;
  OpGraph graph_;
  CachedMap<StreamNodes> streams_;
  CachedMap<HostThread> threads_;
  CachedMap<DeviceJoin> devices_;
  struct FlagUse {
    std::uint32_t node = kNoNode;
    std::uint32_t value = 0;
  };
  struct Flag {
    std::vector<FlagUse> waits, writes;  // in the order of the records
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Flag> flags_;  // by buffer and offset
  // Additional runs of a submitted op, by stream and position of the op. Example: the second half of a copy through
  // host memory.
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<std::uint32_t>> further_;
};

}  // namespace

OpGraph op_graph(const TraceData& trace, std::span<const TraceSpan> spans) {
  return GraphBuilder(trace, spans).build();
}

std::vector<std::uint32_t> OpGraph::predecessors(std::uint32_t span) const {
  std::vector<std::uint32_t> result;
  std::vector<std::uint32_t> open = {nodes[node_of[span]].prev};
  std::set<std::uint32_t> visited;  // many waits may lead to one node
  while (!open.empty()) {
    std::uint32_t node = open.back();
    open.pop_back();
    for (; node != kNoNode && nodes[node].kind != NodeKind::kOp; node = nodes[node].prev) {
      if (!visited.insert(node).second) break;
      if (!nodes[node].flag) open.push_back(nodes[node].other);
    }
    if (node != kNoNode && nodes[node].kind == NodeKind::kOp) result.push_back(nodes[node].span);
  }
  return result;
}

}  // namespace slip::watch
