// Figures: how well copies hide behind compute, from the spans of a trace. Exact integers of picoseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slip/op.hpp"
#include "slip/trace.hpp"

namespace slip {

inline constexpr std::size_t kEngines = 5;

// With several devices, times add up over the devices, `bound` is the highest of them, and total and idle are of all
// together. Copies within a device run on its compute engine and count as compute.
struct Figures {
  std::uint64_t ops = 0;               // spans that ran
  Picos total = 0;                     // first start to last end
  Picos from_queued = 0;               // first submission to last end
  Picos idle = 0;                      // of total: no engine was busy
  std::array<Picos, kEngines> busy{};  // by engine: time with at least one op running
  std::array<Picos, kEngines> sum{};   // by engine: durations added
  Picos copy = 0;                      // time with at least one copy in or out running
  Picos overlapped = 0;                // of that, while compute ran
  Picos exposed = 0;                   // of that, while it did not
  // No run takes less: the most that compute, copies in or copies out need, one op at a time, or as many at once as the
  // engine was observed to run. At most `total`.
  Picos bound = 0;

  Picos busy_of(Engine engine) const { return busy[static_cast<std::size_t>(engine)]; }
  Picos sum_of(Engine engine) const { return sum[static_cast<std::size_t>(engine)]; }
  // Copy time hidden behind compute / copy time, the definition of Holistic Trace Analysis. 0 without copies.
  double overlap_percent() const {
    return copy > 0 ? 100.0 * static_cast<double>(overlapped) / static_cast<double>(copy) : 0.0;
  }
};

Figures figures(std::span<const TraceSpan> spans);

}  // namespace slip
