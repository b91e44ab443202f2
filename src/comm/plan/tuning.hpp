// Tuning: chooses the algorithm of a call. A model predicts the time of each algorithm from the measured latency and
// rate of the links, and the fastest wins. All ranks have the same inputs, so they make the same choice.
#pragma once

#include <string>

#include "comm/placement/comm_graph.hpp"
#include "comm/plan/algorithm.hpp"

namespace slip::comm {

// Typical values of pipes between ranks of one host. Rates are in GB/s (bytes, not bits), here and below.
inline constexpr double kPipeLatencyUs = 0.4, kPipeGbps = 10, kPipeMessageUs = 0.1;
// The rate at which one core copies, counting bytes read and bytes written.
inline constexpr double kMemoryGbps = 36;

struct LinkRates {
  double latency_us = 10;  // of a small message
  double gbps = 4;         // of large messages, while the link carries messages in the other direction, too
  double message_us = 2;   // the time a rank spends on each further message that is under way at the same time
  // Between ranks of one host, if `latency_us` and `gbps` are those of another host.
  double host_latency_us = kPipeLatencyUs, host_gbps = kPipeGbps;
};

// The inputs of the model, the same on all ranks.
struct TuningInputs {
  int nranks = 1;
  int hosts = 1;
  LinkRates rates = {};
  int min_channels = 1, max_channels = 1;
  int rails = 1;  // network interfaces of a host that carry data, see LinkRails
  // The load of the busiest link of the topology in an all_to_all, directly and through relays.
  AllToAllLoads loads = {};
};

// The model's time in microseconds. `bytes`: of a block.
double predicted_us(Algorithm algorithm, Collective kind, std::uint64_t bytes, const TuningInputs& tuning);

// The number of channels beyond which more channels are not faster. Each rank of a host can drive a channel of its own
// to the next host, if it has a core of its own. `each`: the minimum number of ranks on a host.
int useful_channels(int hosts, int each, bool oversubscribed);

struct ScheduleChoice {
  const Schedule* schedule = nullptr;
  std::uint64_t chunk_bytes = 0;
  int channels = 1;
  std::string text;  // the reason of the choice, for SLIP_DEBUG=tune; empty without `explain`
};
// `wanted`: kAuto, or the algorithm that the user asked for, used if it has a schedule for the call. `rank_order`: only
// schedules that reduce in the order of the ranks.
ScheduleChoice choose(const Call& call, const TuningInputs& tuning, Algorithm wanted, bool rank_order, bool explain);

}  // namespace slip::comm
