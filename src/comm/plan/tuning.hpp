// Tuning: which algorithm a call uses. A model of what each costs, with a latency and a rate of the links that were
// measured between ranks, and the least wins; all ranks have the same figures, so they choose the same.
#pragma once

#include <string>

#include "comm/plan/algorithm.hpp"

namespace slip {

// Of pipes between ranks of one host, roughly.
inline constexpr double kPipeLatencyUs = 0.4, kPipeGbps = 10, kPipeMessageUs = 0.1;
// Of a core: bytes read and written.
inline constexpr double kMemoryGbps = 36;

struct LinkRates {
  double latency_us = 10;  // of a small message
  double gbps = 4;         // of large ones, while the other direction is in use, too
  double message_us = 2;   // a rank's own time for one more message at the same time
};

// Where the ranks are, and what a link between them does.
struct TuningInputs {
  int nranks = 1;
  int hosts = 1;
  LinkRates rates = {};
  int min_channels = 1, max_channels = 1;
};

// By the model, in microseconds. `bytes`: of a block.
double predicted_us(Algorithm algorithm, Collective kind, std::uint64_t bytes, const TuningInputs& tuning);

// How many channels are worth it: so many that each rank of a host has its own way to the next one, where each has a
// core for it. `each`: the fewest ranks of a host.
int useful_channels(int hosts, int each, bool crowded);

struct ScheduleChoice {
  const Schedule* schedule = nullptr;
  std::uint64_t chunk_bytes = 0;
  int channels = 1;
  std::string text;  // why, for who wants to see it; only if asked for
};
// `wanted`: kAuto, or what was asked for, where it can do the call. `rank_order`: only those that reduce in the order
// of the ranks.
ScheduleChoice choose(const Call& call, const TuningInputs& tuning, Algorithm wanted, bool rank_order, bool explain);

}  // namespace slip
