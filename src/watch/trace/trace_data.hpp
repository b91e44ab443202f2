// What the code around TraceData shares: the form in which records are kept, limits of a trace file, the start of each
// device's clock, and the arrows that viewers draw between ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "slip/trace.hpp"

namespace slip {

enum class RunNames { kOfTheirOps, kTheirOwn };

// The one form in which data() and read_trace() agree: records by sequence, buffers by id and once each, runs with the
// name and place of their op. kTheirOwn: they have those already.
void tidy(TraceData& data, RunNames names = RunNames::kOfTheirOps);

// How much a trace file may hold.
inline constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
inline constexpr std::size_t kMaxRanges = std::size_t{1} << 29;
inline constexpr std::uint32_t kMaxRanks = 1U << 20;
inline constexpr Picos kMaxTime = Picos{1} << 61;  // 26 days

// Whether all times, and all durations together, are within the limit: then sums of them cannot overflow.
bool times_fit(const TraceData& data);

// By device: what to take from its times. Clocks that start with the machine run far ahead of virtual time and are
// shifted to zero, for viewers count in doubles; devices on such a clock share one start, so that they stay aligned.
std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace);

// From the last op that a wait covers to the first op that it holds: indices of spans.
struct Arrow {
  std::uint32_t from = 0, to = 0;
  bool barrier = false;
};

// In the order of the waits. Ops that did not run, or whose submission was not seen, have none.
std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
