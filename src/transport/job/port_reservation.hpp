// The address at which the ranks of a job on several hosts connect: an address of the first host, and a port that no
// other program can take before rank 0 listens there.
#pragma once

#include <string>

#include "base/env.hpp"
#include "transport/socket/abort_flag.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {

// The address of this host that the other hosts use. With a `rule` (SLIP_SOCKET_IFNAME): the address of an interface
// that it accepts. Without: the first address of `preferred` (separated by commas) that an interface of this host has;
// otherwise own_address().
// Throws kInvalidValue if no interface matches the rule.
SocketAddress rendezvous_address(const std::string& rule, const std::string& preferred);

// Holds a free port without listening at it. Rank 0 can still listen there, because both sockets have SO_REUSEADDR. The
// kernel gives the port to no other process, and neither does SLIP_PORTS while that range has another free port.
class PortReservation {
 public:
  PortReservation(const SocketAddress& address, const base::PortRange& ports);  // throws kIo
  const SocketAddress& address() const { return address_; }

 private:
  OwnedDescriptor socket_;
  SocketAddress address_;
};

}  // namespace slip::transport
