// EngineUse: the ops that each engine of a trace ran, in order, and when the engine was busy. Used by analyse(),
// figures() and replayed_length().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/analysis.hpp"

namespace slip::watch {

// A time interval during which at least one op ran; `first` is the op that began it.
struct Interval {
  Picos begin = 0, end = 0;
  std::uint32_t first = kNoSpan;
};

struct EngineUse {
  std::uint32_t device = 0;
  Engine engine = Engine::kNone;
  std::vector<std::uint32_t> ops;  // span indices, in the order of their starts
  std::vector<Interval> busy;      // in order, disjoint
  Picos sum = 0;                   // of the durations
  bool serial = true;              // it never ran two ops at once
};

// Sorted by device, then engine. Contains only engines that ran an op.
std::vector<EngineUse> engine_use(std::span<const TraceSpan> spans);

// By span: the last op that left the engine before this one started, if the engine had no capacity for both. The
// capacity is inferred: the maximum concurrency observed, by declared width, and at least one whole engine. An op that
// starts at the instant when another ends counts as having waited for it.
std::vector<std::uint32_t> engine_predecessors(std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

// Each list of intervals is in order and disjoint.
std::vector<Interval> union_of(std::vector<std::vector<Interval>> lists);
Picos overlap_time(const std::vector<Interval>& a, const std::vector<Interval>& b);
Picos total_time(const std::vector<Interval>& intervals);

}  // namespace slip::watch
