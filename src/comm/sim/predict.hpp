// What a collective would take on machines that are described and need not be there: its programs, rehearsed on sim
// devices with the links of the topology, which messages share max-min fair.
#pragma once

#include "comm/plan/algorithm.hpp"
#include "comm/sim/program_simulation.hpp"

namespace slip {

// What topology files do not say.
struct PredictedCosts {
  double latency_us = 1.5;    // of a message within a machine,
  double net_latency_us = 6;  // and to another
  double memory_gbps = 0;     // of a device, reads and writes together; 0: 2000 of a GPU, 20 of a core
};

struct PredictionAsked {
  Call call;
  Algorithm algorithm = Algorithm::kRing;  // one that has a schedule for the call
  bool through_switch = false;             // all_reduce: by the plan's trees whose root is a switch that reduces
  // Between machines only nets of the same number reach each other: what is for another rail's rank crosses its own
  // machine first, the processor's way, unless a relay takes it. Rings and trees have nets of their own.
  bool rails = false;
  std::uint64_t chunk_bytes = 0;  // 0: as communicators choose it
  PredictedCosts costs = {};
};

struct CallPrediction {
  double us = 0;
  int channels = 1;         // that carry a share of the data each
  std::uint64_t steps = 0;  // primitives, of all ranks
};

// Rings and trees are those of `plan`, all its channels at once. The others do not know channels: each rank uses the
// net that is nearest to it, and relays are those of rail_routes(). Throws kInvalidValue when that would be too much to
// simulate.
CallPrediction predict(const Cluster& cluster, const ChannelPlan& plan, const PredictionAsked& asked,
                       Here here = Here::at());

}  // namespace slip
