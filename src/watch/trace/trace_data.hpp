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

// Whether normalise() gives each kRun the name and source line of its op, or the runs have them already.
enum class RunNames { kFromOps, kKeep };

// Brings a trace into the form that Trace::data() and read_trace() share: records by sequence, buffers by id and once
// each, runs with the name and source line of their op.
void normalise(TraceData& data, RunNames names = RunNames::kFromOps);

// How much a trace file may hold.
inline constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
inline constexpr std::size_t kMaxRanges = std::size_t{1} << 29;
inline constexpr std::uint32_t kMaxRanks = 1U << 20;
inline constexpr Picos kMaxTime = Picos{1} << 61;  // 26 days

// Whether all times, and all durations together, are within the limit: then sums of them cannot overflow.
bool times_fit(const TraceData& data);

// By device: the time that a file or page subtracts from the device's times. Clocks that count from the boot of the
// machine are shifted to zero, because viewers compute in doubles. All such devices share one origin, so that they stay
// aligned. Virtual clocks start at zero and have origin 0.
std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace);

// An arrow between two ops (indices of spans): from the last op that a wait covers to the first op that it delays.
struct Arrow {
  std::uint32_t from = 0, to = 0;
  bool barrier = false;
};

// In the order of the waits. Ops that did not run, or whose submission is not in the trace, have no arrows.
std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
