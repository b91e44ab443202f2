// OpGraph: the ops of a trace and all waits between them. The analysis of starts, the replay and the deadlock search
// traverse it.
//
// Nodes are ops and waits, in the order of the records; ops submitted before the trace come first. A node has at
// most two predecessors. They come before it in the list, with one exception: the write of a flag may be submitted
// after the wait for it. In OpGraph::order every node comes after its predecessors, so one pass forward or backward
// over it is enough. The predecessors, by kind of node:
//
//   op               prev: the node before it in its stream;  other: the host's last wait before the submission
//   event, barrier   prev: the node before it in its stream;  other: the point that it waits for
//   flag             prev: the node before it in its stream;  other: the first write that ends the wait, if any
//   sync             prev: the host thread's previous wait;   other: the point that it waited for
//   device           prev: the device's previous join;        other: the end of one stream of the device
//
// A flag is the wait of a stream memory operation; the node of the op itself follows it. A device node joins the end of
// one stream; a wait of the host for a whole device is a chain of them.
// A wait is a node of its own because another stream may wait for it without an op in between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/analysis.hpp"
#include "slip/race.hpp"

namespace slip::watch {

// Describes the op for reports.
inline OpPlace place_of(const TraceSpan& span) {
  return {span.stream, span.position, span.name.empty() ? op_kind_name(span.kind) : span.name,
          span.file,   span.line,     {}};
}

inline constexpr std::uint32_t kNoNode = ~std::uint32_t{0};

// kWait: an event, a barrier, a flag or the join of a device.
enum class NodeKind : std::uint8_t { kOp, kWait, kSync };

struct OpNode {
  std::uint32_t span = kNoSpan;    // kOp
  std::uint32_t record = 0;        // index in the trace: the submission (without one, the run) or the wait
  std::uint32_t prev = kNoNode;    // see above
  std::uint32_t other = kNoNode;   // see above
  std::uint32_t before = kNoNode;  // kOp: the previous op that its host thread submitted
  std::uint32_t thread = 0;        // kOp, kSync: index into OpGraph::thread_last
  NodeKind kind = NodeKind::kOp;
  bool flag = false;  // kWait: for a flag
};

struct OpGraph {
  std::vector<OpNode> nodes;
  std::vector<std::uint32_t> order;        // all nodes, each after its predecessors
  std::vector<std::uint32_t> node_of;      // by span
  std::vector<std::uint32_t> thread_last;  // by host thread: the op that it submitted last, or kNoNode

  // The spans that directly precede this one, by its stream's order and by waits of streams for points. Waits for flags
  // and waits of the host do not count.
  std::vector<std::uint32_t> predecessors(std::uint32_t span) const;
};

// `spans` must be trace.spans().
OpGraph op_graph(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip::watch
