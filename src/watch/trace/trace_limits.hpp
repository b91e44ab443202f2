// How much a trace file may hold.
#pragma once

#include <cstddef>

#include "slip/trace.hpp"

namespace slip {

inline constexpr std::size_t kMaxRecords = std::size_t{1} << 27;
inline constexpr std::size_t kMaxRanges = std::size_t{1} << 29;
inline constexpr std::uint32_t kMaxRanks = 1U << 20;
inline constexpr Picos kMaxTime = Picos{1} << 61;  // 26 days

// Whether all times, and all durations together, are within the limit, so that figures can be reckoned without a
// thought for overflow.
inline bool times_fit(const TraceData& data) {
  Picos sum = 0;
  const auto fits = [](Picos time) { return -kMaxTime <= time && time <= kMaxTime; };
  for (const TraceRecord& record : data.records) {
    if (!fits(record.queued) || !fits(record.started) || !fits(record.ended)) return false;
    if (record.kind != RecordKind::kRun) continue;
    sum += record.ended - record.started;
    if (!fits(sum)) return false;
  }
  return true;
}

}  // namespace slip
