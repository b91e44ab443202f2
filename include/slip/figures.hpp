// figures(): how much of a trace's copy and communication time overlapped with compute. All times are exact integers in
// picoseconds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slip/op.hpp"
#include "slip/trace.hpp"

namespace slip {

// With several devices, times are sums over the devices, `bound` is their maximum, and `total` and `idle` are of all
// devices together. Copies within a device use its compute engine and count as compute. Annotations
// (TraceSpan::annotation) are not counted.
struct Figures {
  std::uint64_t ops = 0;               // spans that ran
  Picos total = 0;                     // first start to last end
  Picos from_queued = 0;               // first submission to last end
  Picos idle = 0;                      // part of total in which no engine was busy
  std::array<Picos, kEngines> busy{};  // by engine: time with at least one op running
  std::array<Picos, kEngines> sum{};   // by engine: durations of all ops added up
  Picos copy = 0;                      // time with at least one copy in or out running
  Picos overlapped = 0;                // part of copy in which compute ran
  Picos exposed = 0;                   // part of copy in which no compute ran
  Picos communication = 0;             // time with at least one op with other ranks running, waits for them included
  Picos communication_overlapped = 0;  // part of communication in which compute ran
  Picos communication_exposed = 0;     // part of communication in which no compute ran
  // Lower bound of `total`: the busiest of compute, copies in and copies out. Each is assumed to run the maximum number
  // of concurrent ops that was observed. Communication is excluded, because its time includes waits for other ranks.
  Picos bound = 0;

  Picos busy_of(Engine engine) const { return busy[static_cast<std::size_t>(engine)]; }
  Picos sum_of(Engine engine) const { return sum[static_cast<std::size_t>(engine)]; }
  // 100 * overlapped / copy, as Holistic Trace Analysis defines it. 0 without copies.
  double overlap_percent() const {
    return copy > 0 ? 100.0 * static_cast<double>(overlapped) / static_cast<double>(copy) : 0.0;
  }
  // 100 * communication_overlapped / communication. 0 without communication.
  double communication_percent() const {
    return communication > 0
               ? 100.0 * static_cast<double>(communication_overlapped) / static_cast<double>(communication)
               : 0.0;
  }
};

Figures figures(std::span<const TraceSpan> spans);

}  // namespace slip
