// The first step of a bootstrap, from a rank's side: it finds the root, says who it is and where it listens, and gets
// to know its successor when all have come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "slip/unique_id.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/socket/interfaces.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

struct Meeting {
  Socket listener;
  Secret session{};  // of all connections between these ranks
  SocketAddress successor;
  std::int64_t rest_ns = 0;  // until the first deadline of any rank
  std::optional<FrameSocket> root;
  std::string root_loss;  // the error text if the root is lost

  // Throws kRankLost if the root's process ended before it had answered all ranks. A rank that it did not answer gives
  // up and closes its listener, so its predecessor must ask here before it names that rank.
  void require_all_answered(const Patience& patience);
};

struct Newcomer {
  int rank = 0, nranks = 1;
  std::string text() const;  // "rank 3 of 8"
};

// Throws what is wrong with the ranks, the same on all of them, or who has not come before the deadline.
Meeting meet(const UniqueId& id, const Newcomer& self, const InterfaceFilter& filter, const Patience& patience);

}  // namespace slip
