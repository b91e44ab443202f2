// FlowNetwork: the bandwidth of links, shared max-min fairly by the copies (flows) that cross them. A flow gets an
// equal share of its bottleneck link; bandwidth that it cannot use on other links goes to other flows. Engines uses it.
//
// A flow that concurrent kernels slow down keeps its share but moves fewer bytes with it.
//
// When a flow starts or stops, only flows that share a link with it, directly or through other flows, get new rates.
// All changes of one instant take effect together, in settle().
//
// Topology: the links of a simulated machine and the route of each copy over them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "backend/sim/arithmetic.hpp"

namespace slip::sim {

struct SimStream;

// The links that a copy crosses, by index.
using Path = std::vector<std::uint32_t>;

struct Flow {
  const Path* path = nullptr;    // null: not started
  SimStream* stream = nullptr;   // the stream of the copy
  bool slowed = false;           // by concurrent kernels
  U128 left = 0;                 // bytes x 10^12 x FlowNetwork::full_pace_, so that all arithmetic is exact
  std::uint64_t rate = 0;        // its share of the links in bytes per second; 0: not settled yet
  U128 speed = 0;                // decrease of `left` per picosecond: rate x pace
  Picos since = 0;               // the time at which `left` was computed
  Picos end = 0;                 // when the flow ends at its current speed
  std::uint64_t fresh_rate = 0;  // scratch of settle(): the new rate; 0: not assigned yet
  std::uint64_t mark = 0;        // the last settle() that visited it
};

class FlowNetwork {
 public:
  std::uint32_t add(std::uint64_t bytes_per_second) {
    links_.emplace_back().capacity = bytes_per_second;
    return static_cast<std::uint32_t>(links_.size() - 1);
  }

  // Sets how much longer a slowed flow takes, the same for all flows. REQUIRES: no flow has started.
  void set_slowdown(std::uint32_t ppm) {
    if (ppm == 0) return;  // both paces stay 1: 128-bit divisions of small numbers are faster
    full_pace_ = kPpm + ppm;
    slow_pace_ = kPpm;
  }

  // Changes take effect at the next settle(), which must be called before time advances.
  void start(Flow& flow, const Path& path, std::uint64_t bytes, Picos now);
  void slow(Flow& flow, bool slowed) {
    if (flow.slowed == slowed) return;
    flow.slowed = slowed;
    paced_.push_back(&flow);
  }
  void stop(Flow& flow);

  bool settled() const { return touched_.empty() && paced_.empty(); }
  // Recomputes the shares. Returns the flows whose `end` changed, valid until the next call.
  std::span<Flow* const> settle(Picos now);

 private:
  struct Link {
    std::uint64_t capacity = 0;
    std::vector<Flow*> flows;
    std::uint64_t mark = 0;  // the last settle() that visited it
    std::uint32_t open = 0;  // scratch of settle(): flows without a new rate
    std::uint64_t left = 0;  // scratch of settle(): bandwidth not assigned yet
  };

  void collect(std::uint32_t link);
  void share();
  void give(Flow& flow, std::uint64_t rate);
  void update(Flow& flow, Picos now);

  std::vector<Link> links_;
  std::vector<std::uint32_t> touched_;           // links whose flows changed since the last settle()
  std::vector<Flow*> paced_;                     // flows whose `slowed` changed since the last settle()
  std::uint32_t full_pace_ = 1, slow_pace_ = 1;  // speed per rate of a normal and of a slowed flow
  std::uint64_t mark_ = 0;
  // Scratch memory of settle().
  std::vector<std::uint32_t> part_;  // the links of one connected component
  std::vector<Flow*> part_flows_;
  std::vector<Flow*> changed_;
};

struct Route {
  Path path;
  Picos latency = 0;
};

class Topology {
 public:
  Topology(const Description& description, int devices, FlowNetwork& links);

  // The route between the host's memory and a device. `in`: towards the device.
  const Route& host(int device, bool in, bool pageable) const { return hosts_[index(device, in, pageable)]; }
  // The route between two devices. Null: copies must go through the host. The pointer stays valid.
  const Route* peer(int from, int to) {
    const auto& known = known_[static_cast<std::size_t>(from)];
    if (!known.empty() && known[static_cast<std::size_t>(to)]) [[likely]]
      return known[static_cast<std::size_t>(to)];
    return find_peer(from, to);
  }

 private:
  static std::size_t index(int device, bool in, bool pageable) {
    return static_cast<std::size_t>(device) * 4 + (in ? 2 : 0) + (pageable ? 1 : 0);
  }
  static std::uint64_t pair(int from, int to) {
    return static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
  }
  const Route* find_peer(int from, int to);
  void add_hosts(const CopyDescription& copies, FlowNetwork& links);
  void add_peers(FlowNetwork& links);
  void add_listed(FlowNetwork& links);
  Route between(int from, int to) const;
  Route around(int from, int to) const;

  const PeerDescription peers_;
  const int devices_;
  std::uint32_t first_peer_link_ = 0;
  std::vector<Route> hosts_;  // by index()
  // Routes between devices, computed on first use: a ring of 4,096 devices has 16 million pairs, and programs use few
  // of them.
  std::unordered_map<std::uint64_t, Route> routes_;
  std::vector<std::vector<const Route*>> known_;  // a cache of routes_ without hashing, by source and destination
};

}  // namespace slip::sim
