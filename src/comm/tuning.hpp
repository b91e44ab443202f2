// Tuning: which algorithm a call uses. A model of what each costs, with a latency and a rate of the links that were
// measured between ranks, and the least wins; all ranks have the same figures, so they choose the same.
#pragma once

#include <string>

#include "comm/algorithm.hpp"

namespace slip {

// Of a core: bytes read and written.
inline constexpr double kMemoryGbps = 36;

struct LinkRates {
  double latency_us = 10;  // of a small message
  double gbps = 4;         // of large ones, while the other direction is in use, too
  double message_us = 2;   // a rank's own time for one more message at the same time
};

// By the model, in microseconds. `bytes`: of a block.
double predicted_us(Algorithm algorithm, Collective kind, std::uint64_t bytes, int nranks, const LinkRates& rates);

struct Choice {
  const Recipe* recipe = nullptr;
  std::uint64_t chunk_bytes = 0;
  std::string text;  // why, for who wants to see it; only if asked for
};
// `wanted`: kAuto, or what was asked for, where it can do the call. `rank_order`: only those that reduce in the order
// of the ranks.
Choice choose(const Call& call, int nranks, const LinkRates& rates, Algorithm wanted, bool rank_order, bool explain);

}  // namespace slip
