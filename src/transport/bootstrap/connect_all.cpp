#include "transport/bootstrap/connect_all.hpp"

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "slip/error.hpp"

namespace slip {

std::vector<Reached> connect_all(std::span<const SocketAddress> peers, const Deadline& deadline) {
  std::vector<Reached> result(peers.size());
  std::vector<std::size_t> pending;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    int error = 0;
    result[i].socket = Socket::begin_connect(peers[i], error);
    if (error == EINPROGRESS) pending.push_back(i);
  }
  while (!pending.empty()) {
    std::vector<pollfd> watched;
    for (const std::size_t i : pending) watched.push_back({result[i].socket.descriptor(), POLLOUT, 0});
    wait_for_any(watched, deadline);
    if (deadline.abort && deadline.abort->is_set()) throw Error(Code::kAborted, "connecting to others was aborted", {});
    const bool late = deadline.at_ns != 0 && now_ns() >= deadline.at_ns;
    std::erase_if(pending, [&](std::size_t i) {
      const Waited waited = wait_for(result[i].socket.descriptor(), POLLOUT, {now_ns(), nullptr});
      if (waited != Waited::kReady && !late) return false;
      result[i].silent = waited != Waited::kReady;
      if (result[i].silent || result[i].socket.connect_error() != 0) result[i].socket.close();
      return true;
    });
  }
  return result;
}

}  // namespace slip
