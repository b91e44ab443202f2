// Connections to several others at once: those who do not answer cost the time of one.
#pragma once

#include <span>
#include <vector>

#include "transport/socket/socket.hpp"

namespace slip {

struct Reached {
  Socket socket;        // invalid: not reached
  bool silent = false;  // there was no answer before the deadline; else it was refused
};

// In the order of the addresses. Throws only if it is aborted.
std::vector<Reached> connect_all(std::span<const SocketAddress> peers, const Deadline& deadline);

}  // namespace slip
