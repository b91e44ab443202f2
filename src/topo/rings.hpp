// The ring search: finds orders of a machine's ranks, and the nets they go through, that fit on its links at the same
// time. plan_channels() uses it.
//
// Rates are whole kB/s and the effort is limited by a number of steps, not by time, so every rank gets the same result.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

// The ranks of one machine, as nodes of its graph.
struct RingMembers {
  const TopoSystem* system = nullptr;
  const TopoPaths* paths = nullptr;
  std::vector<int> nodes;    // by member; members may share a node
  bool through_net = false;  // the ring enters and leaves the machine through a net
};

// The part of a ring within one machine.
struct RingSegment {
  std::vector<int> order;  // of members
  int net = -1;            // of TopoSystem::nets
};

struct RingSet {
  std::int64_t rate = 0;                           // of each channel
  std::vector<std::vector<RingSegment>> segments;  // by machine and channel; each machine has all channels
  PathType within = PathType::kLoc, between = PathType::kLoc;
};

inline constexpr double kRatesInGbps = 1e6;
inline std::int64_t to_rate(double gbps) { return std::llround(gbps * kRatesInGbps); }

// The rings with the highest rate over all channels. Among equal ones, nearer paths win, then fewer channels.
RingSet search_rings(const std::vector<RingMembers>& machines, const ChannelLimits& limits);

}  // namespace slip::topo
