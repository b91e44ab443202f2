// Rails: the network interfaces of a host over which its ranks exchange data. A rail of one host is paired with a rail
// of another host, mostly in the same subnet; the sockets of a TCP connection are bound to such pairs
// (NetOptions::paths). Functions here change nothing and may be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/socket/address.hpp"

namespace slip::transport {

inline constexpr std::size_t kMaxRails = 8;  // of a host

// One interface of a host. Trivially copyable: ranks send it to each other as bytes.
struct Rail {
  char interface[16] = {};            // the kernel's limit, with the zero at the end
  SocketAddress::WireFormat address;  // with the port, once a rank listens there
  std::int32_t prefix_bits = 0;       // of its subnet
  std::int32_t mbps = 0;              // line rate; 0: unknown

  Rail() = default;
  Rail(const Interface& of, int line_rate_mbps);
  std::string_view name() const;  // the bytes may come from another rank, so they need not end with a zero
  std::string text() const;       // "eth0 (192.0.2.1)"
};

// A NIC of the host's topology: it is an interface with this name or this PCI address. `bus_id` may be empty.
struct Nic {
  std::string name, bus_id;
};

// The criteria by which interfaces are chosen as rails.
struct RailRequest {
  InterfaceFilter filter;  // of SLIP_SOCKET_IFNAME
  SocketAddress control;   // the address at which the other ranks reach this one during setup
  std::vector<Nic> nics;   // of the topology of the host; empty: it is not known
};

// An interface that may become a rail.
struct RailCandidate {
  Interface interface;
  InterfaceHardware hardware;
};
std::vector<RailCandidate> rail_candidates();  // of this host
bool is_nic(const RailCandidate& candidate, const Nic& nic);

// The rails of a host, at most kMaxRails:
//   with a rule            all interfaces that it accepts
//   with known NICs        the interfaces that are among them, if there are any
//   otherwise              the interface of `control`, and all others on a bus that report the same line rate
// All have an address of the family of `control`; loopback and link-local addresses do not count. A message is divided
// into equal parts, so the slowest rail limits all: rails are left out if the others are faster without them. Empty:
// the only rail would be the interface of `control`; connections then need not be bound.
std::vector<Rail> choose_rails(const std::vector<RailCandidate>& candidates, const RailRequest& request);

// A path from a rail of this host to a rail of another host.
struct RailPath {
  Rail local, remote;
  std::string text() const;  // "eth0 (192.0.2.1) to 192.0.2.2"
};
// Pairs the rails of this host with those of the host of another rank. Each rail is in one pair at most. Prefers rails
// in the same subnet, then with the same interface name, then at the same index of the two lists. Rails that remain are
// left out. Empty if the other rank is on this host: such connections use the loopback interface.
std::vector<RailPath> pair_rails(const std::vector<Rail>& local, const std::vector<Rail>& remote);

}  // namespace slip::transport
