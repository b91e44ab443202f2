// The ring search: finds rings through the ranks of all machines whose traffic fits on the links at the same time. For
// each ring it finds the order of each machine's ranks and the nets through which the ring enters and leaves the
// machine. plan_channels() uses it.
//
// A ring that crosses a machine enters it through one net and leaves it through another. On rails such a ring must
// enter the next machine through the same number. So rings cross in pairs there: the second enters where the first
// leaves, and leaves where the first enters. Every second machine swaps the two. Then an even number of equal machines
// closes all rings.
//
// Rates are whole kB/s, and the search is limited by a number of steps, not by time. So every rank gets the same
// result.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "slip/topology.hpp"

namespace slip::topo {

// The ranks of one machine. A member is the index of a rank among them.
struct RingMembers {
  const TopoSystem* system = nullptr;
  const TopoPaths* paths = nullptr;
  std::vector<int> nodes;    // by member: its device, as a node of the machine's graph; members may share a device
  bool through_net = false;  // the ring enters and leaves the machine through a net
};

// The part of a ring within one machine.
struct RingSegment {
  std::vector<int> order;  // of members
  int net = -1, out = -1;  // indices into TopoSystem::nets: enters, leaves; -1: the ring stays in the machine
  bool crosses() const { return net != out; }
};

struct RingSet {
  std::int64_t rate = 0;                           // of each channel, in kB/s
  std::vector<std::vector<RingSegment>> segments;  // by machine and channel; each machine has all channels
  TopoPathType within = TopoPathType::kLoc, between = TopoPathType::kLoc;  // see ChannelPlan
};

inline constexpr double kRatesInGbps = 1e6;  // kB/s in one GB/s
inline std::int64_t to_rate(double gbps) { return std::llround(gbps * kRatesInGbps); }

// Finds the rings with the highest sum of rates. Among equal ones, nearer paths win, then fewer channels.
RingSet search_rings(const std::vector<RingMembers>& machines, const ChannelLimits& limits);

}  // namespace slip::topo
