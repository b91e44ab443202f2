// OpGraph: what each op of a trace had to follow.
//
// Nodes are the ops, and between them the waits that the trace tells of. A node follows at most two others, which come
// before it in the list, so one pass forward or backward settles everything:
//
//   op               prev: what came before it in its stream; other: the host's last wait before it was submitted
//   event, barrier   prev: what came before it in its stream; other: the point that it waits for
//   word             the same for a stream memory operation that waits for a word; the op comes behind it
//   sync             prev: the host thread's wait before;     other: the point that it waited for
//   device           prev: the device's join before;          other: a stream's end (for waits for a whole device)
//
// A wait is a node of its own because a stream may pass on what it waited for without an op in between.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/analysis.hpp"
#include "slip/race.hpp"

namespace slip {

inline OpPlace place_of(const TraceSpan& span) {
  return {span.stream, span.position, span.name.empty() ? kind_name(span.kind) : span.name, span.file, span.line};
}

inline constexpr std::uint32_t kNoNode = ~std::uint32_t{0};

enum class NodeKind : std::uint8_t { kOp, kEvent, kBarrier, kWord, kSync, kDevice };

struct OpNode {
  std::uint32_t span = kNoSpan;    // kOp
  std::uint32_t record = 0;        // of the trace: the submission (the run, if that was not seen) or the wait
  std::uint32_t prev = kNoNode;    // see above
  std::uint32_t other = kNoNode;   // see above
  std::uint32_t before = kNoNode;  // kOp: the op that its thread submitted before
  std::uint32_t thread = 0;        // kOp, kSync: index into OpGraph::thread_last
  NodeKind kind = NodeKind::kOp;
};

// An op that another had to follow directly, and why.
struct OpEdge {
  enum class Kind : std::uint8_t { kStream, kEvent, kBarrier, kWord };
  std::uint32_t from = kNoSpan;
  std::uint32_t record = 0;  // the wait's; of kStream the op's own
  Kind kind = Kind::kStream;
};

struct OpGraph {
  std::vector<OpNode> nodes;
  std::vector<std::uint32_t> node_of;      // by span
  std::vector<std::uint32_t> thread_last;  // by host thread: the op that it submitted last, or kNoNode

  // What the span had to follow by its stream's order and by waits; the host's waits are not among them.
  void predecessors(std::uint32_t span, std::vector<OpEdge>& result) const;
};

// `spans` are those of trace.spans().
OpGraph op_graph(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
