// Topology: the links of a simulated machine and the route of each copy over them. Engines uses it.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "backend/sim/description.hpp"
#include "backend/sim/links.hpp"

namespace slip::sim {

struct Route {
  Path path;
  Picos latency = 0;
};

class Topology {
 public:
  Topology(const Description& description, int devices, Links& links);

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
  void add_hosts(const CopyDescription& copies, Links& links);
  void add_peers(Links& links);
  void add_listed(Links& links);
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
