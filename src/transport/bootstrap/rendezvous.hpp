// Rendezvous: how the ranks of a bootstrap find each other. The root is a thread in one process, whose address the
// UniqueId names. Each rank connects to the root and sends its rank number and listening address. When all ranks have
// connected, the root sends each one the address of its successor in the ring, and ends.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "slip/unique_id.hpp"
#include "transport/bootstrap/frame_socket.hpp"
#include "transport/job/placement.hpp"

namespace slip::transport {

// At a deadline, the root (or the rank that waits for a missing rank) sends the others the missing ranks. The others
// wait this much longer than the deadline for that notification.
inline constexpr std::int64_t kNotifyNs = 2'000'000'000;

// The fields of a UniqueId.
struct UniqueIdParts {
  static constexpr std::string_view kUnix = "unix:";  // a host that begins with it is the name of a Unix socket

  std::string host;
  std::uint16_t port = 0;
  Secret secret{};
  bool rank0_listens = false;

  static UniqueIdParts of(const UniqueId& id);
  UniqueId id() const;
};

// Starts the root in a detached thread, which ends when all ranks are answered, or at the deadline. Only the root knows
// which ranks have not connected, so at the first deadline of any rank it sends their numbers to all waiting ranks. If
// ranks contradict each other (one rank twice, different counts, an impossible rank), all of them get that error.
// Connections that do not prove the secret are closed.
void start_root(Socket listener, const Secret& secret, std::int64_t deadline_ns);

// The result of meet_at_root() on one rank.
struct Rendezvous {
  Socket listener;
  Secret session{};  // the secret of all connections between these ranks
  SocketAddress successor;
  std::int64_t rest_ns = 0;         // time until the earliest deadline of all ranks
  std::optional<FrameSocket> root;  // the connection to the root
  std::string root_loss;            // the error text if the root is lost

  // Throws kRankLost if the root's process ended before it had answered all ranks. A rank without an answer gives up
  // and closes its listener. So its predecessor must call this before it reports that rank as lost.
  void require_all_answered(const Deadline& deadline);
};

// Registers this rank at the root and waits for the answer. Throws the same error on all ranks if they contradict each
// other, or an error with the ranks that have not connected before the deadline.
Rendezvous meet_at_root(const UniqueId& id, const RankId& self, const InterfaceFilter& filter,
                        const Deadline& deadline);

}  // namespace slip::transport
