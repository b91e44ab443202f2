// Where the ranks of a job on several hosts find each other: an address of the first host, and a port that is free
// there until rank 0 listens.
#pragma once

#include <string>

#include "base/env.hpp"
#include "transport/socket/abort_flag.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {

// The address of this host that the other hosts use. With a rule (SLIP_SOCKET_IFNAME): of an interface that it accepts.
// Without: the first of `preferred`, a list with commas, that an interface of this host has; otherwise own_address().
// Throws kInvalidValue if no interface matches the rule.
SocketAddress rendezvous_address(const std::string& rule, const std::string& preferred);

// Holds a free port without listening at it. Rank 0 can listen there meanwhile, because both sockets have SO_REUSEADDR.
// No other process gets the port from the kernel, nor by SLIP_PORTS while that range has a free port.
class PortReservation {
 public:
  PortReservation(const SocketAddress& address, const base::PortRange& ports);  // throws kIo
  const SocketAddress& address() const { return address_; }

 private:
  OwnedDescriptor socket_;
  SocketAddress address_;
};

}  // namespace slip::transport
