// The search for rings: which orders of a machine's ranks, and through which port, fit side by side on its links.
//
// Rates are whole kB/s and effort is counted in steps, so that every rank gets the same answer.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

// The ranks of one machine as nodes of its graph.
struct Members {
  const TopoSystem* system = nullptr;
  const TopoPaths* paths = nullptr;
  std::vector<int> nodes;    // by member; several may be the same
  bool through_net = false;  // the ring comes in through a port and leaves through it
};

// One machine's part of a ring.
struct Segment {
  std::vector<int> order;  // of members
  int net = -1;            // of TopoSystem::nets
};

struct RingSet {
  std::int64_t rate = 0;                       // of each channel
  std::vector<std::vector<Segment>> segments;  // by machine, then channel; as many for each machine
  PathType within = PathType::kLoc, between = PathType::kLoc;
};

inline constexpr double kRatesInGbps = 1e6;
inline std::int64_t to_rate(double gbps) { return std::llround(gbps * kRatesInGbps); }

// The rings with the highest rate over all channels; of equal ones those with nearer paths, then with fewer channels.
RingSet search_rings(const std::vector<Members>& machines, const ChannelLimits& limits);

}  // namespace slip::topo
