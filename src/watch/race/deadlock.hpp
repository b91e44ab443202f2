// Deadlock: ops that wait for each other in a circle.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "slip/check.hpp"

namespace slip {

// What an op waits for, by index: every one of `all`, and, unless it is empty, at least one of `any`.
struct Waits {
  std::vector<std::uint32_t> all;
  std::vector<std::uint32_t> any;
};

// A circle of ops none of which can ever run: each waits for the next, the last for the first. Empty: there is none.
// Linear in the number of waits.
std::vector<std::uint32_t> find_circle(const std::vector<Waits>& ops);

// Circles of waits among the ops of a trace that never ran.
std::vector<Deadlock> find_deadlocks(const TraceData& trace, std::span<const TraceSpan> spans);

// Whether a word that was written lets go who waits for the other value; words count up and may wrap.
constexpr bool lets_go(std::uint32_t written, std::uint32_t awaited) {
  return static_cast<std::int32_t>(written - awaited) >= 0;
}

}  // namespace slip
