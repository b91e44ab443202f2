// The root of a bootstrap: a thread where every rank says who it is and where it listens. When all have come it tells
// each one where its successor in the ring is, and ends. It is the only one who knows who has not come, so it also
// tells that: to all who wait, at the first deadline of any of them. Ranks that contradict each other (one rank
// twice, different counts, a rank that cannot be) are an error of all of them. Strangers are sent away.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "transport/bootstrap/secret.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

// The thread belongs to nobody: it ends when all have been answered, or at the deadline.
void start_root(Socket listener, const Secret& secret, std::int64_t deadline_ns);

// "ranks 2, 5 and 7"; a long list is cut.
std::string rank_list(std::span<const int> ranks);

}  // namespace slip
