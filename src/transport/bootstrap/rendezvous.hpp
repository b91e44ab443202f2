// Rendezvous: how the ranks of a bootstrap find each other. The root is a thread in one process, whose address the
// UniqueId names. Each rank connects to it and says which rank it is and where it listens. When all ranks have come,
// the root tells each one the address of its successor in the ring, and ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "slip/unique_id.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/job/placement.hpp"

namespace slip {

// What a UniqueId is made of.
struct UniqueIdParts {
  std::string host;
  std::uint16_t port = 0;
  Secret secret{};
  bool rank0_listens = false;

  static UniqueIdParts of(const UniqueId& id);
  UniqueId id() const;
};

// Starts the root in a detached thread, which ends when all ranks are answered, or at the deadline. Only the root knows
// which ranks have not come, so at the first deadline of any rank it tells all ranks that wait. If ranks contradict
// each other (one rank twice, different counts, an impossible rank), all of them get that error. Strangers are refused.
void start_root(Socket listener, const Secret& secret, std::int64_t deadline_ns);

// What a rank has after it met the others at the root.
struct Rendezvous {
  Socket listener;
  Secret session{};  // of all connections between these ranks
  SocketAddress successor;
  std::int64_t rest_ns = 0;         // until the first deadline of any rank
  std::optional<FrameSocket> root;  // the connection to it
  std::string root_loss;            // the error text if the root is lost

  // Throws kRankLost if the root's process ended before it had answered all ranks. A rank that it did not answer gives
  // up and closes its listener, so its predecessor must ask here before it names that rank.
  void require_all_answered(const Deadline& deadline);
};

// Throws what is wrong with the ranks, the same on all of them, or which ranks have not come before the deadline.
Rendezvous meet_at_root(const UniqueId& id, const RankId& self, const InterfaceFilter& filter,
                        const Deadline& deadline);

}  // namespace slip
