// Socket: a TCP or Unix connection or listener whose calls never block beyond a deadline and can be aborted. Errors
// name both ends. One thread at a time may use it. The descriptor is closed with the object, and at exec.
#pragma once

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/env.hpp"
#include "transport/socket/abort_flag.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {

// When a wait must end: at a time, or when a flag is set.
struct Deadline {
  std::int64_t at_ns = 0;                        // time of now_ns(); 0: no limit
  const AbortFlag* abort = nullptr;              // ends the wait when it is set; may be null
  Deadline within(std::int64_t limit_ns) const;  // the same, or this long from now if that is earlier
};

enum class Waited { kReady, kTimeout, kAborted };

// Waits until poll(2) reports one of the events for the descriptor. An error of the descriptor counts as ready.
Waited wait_for(int descriptor, short events, const Deadline& deadline);
// Waits until one of several descriptors is ready; the caller must find out which one. Also returns at the deadline,
// and when aborted.
void wait_for_any(std::span<const pollfd> watched, const Deadline& deadline);
// The same with a time limit instead of a deadline. Allocates nothing.
void wait_for_any(std::span<pollfd> watched, std::int64_t limit_ns);
Waited wait_a_moment(std::int64_t limit_ns, const Deadline& deadline);  // kReady: the time passed
// Calls poll(2) once, until the time at the latest; 0: no limit. Ignores its errors: the caller polls again.
void poll_until(std::span<pollfd> watched, std::int64_t time_ns);

// The local end of a connection: its packets leave from this address, through this interface.
struct LocalEnd {
  SocketAddress address;
  std::string interface;
};

class Socket {
 public:
  Socket() = default;
  // Port 0: one of SLIP_PORTS; without that variable the kernel chooses a port. See local().
  // With an interface, accepts only connections that come in through it. The accepted sockets send through it, too.
  // Throws if there is no such interface. If the kernel forbids the binding (before Linux 5.7), accepts all
  // connections.
  static Socket listen(const SocketAddress& address, const std::string& interface = {});

  // `from`: null: the routing table chooses the local end.
  static Socket connect(const SocketAddress& peer, const Deadline& deadline, const LocalEnd* from = nullptr);
  // Does not wait. With EINPROGRESS, the socket becomes writable when it is connected or failed.
  static Socket begin_connect(const SocketAddress& peer, int& error, const LocalEnd* from = nullptr);

  Socket accept(const Deadline& deadline) const;
  std::optional<Socket> try_accept(int& error) const;  // nothing with error 0: no connection is pending

  // Transfers all bytes, or throws.
  void send(std::span<const std::byte> bytes, const Deadline& deadline) const;
  void recv(std::span<std::byte> bytes, const Deadline& deadline) const;

  // Transfers as many bytes as possible without waiting.
  struct Moved {
    std::size_t bytes = 0;
    bool ended = false;  // the peer closed the connection, or its process is gone
    int error = 0;       // errno; 0: no error
  };
  Moved try_send(std::span<const std::byte> bytes) const;
  Moved try_recv(std::span<std::byte> bytes) const;
  // The same with several pieces in one call. `flags`: of sendmsg(2).
  Moved try_send(std::span<const iovec> pieces, int flags) const;
  Moved try_recv(std::span<const iovec> pieces) const;

  bool valid() const { return descriptor() >= 0; }
  int descriptor() const { return descriptor_.number(); }
  SocketAddress local() const;
  SocketAddress peer() const;
  std::string text() const;  // "127.0.0.1:1234 to 127.0.0.1:80"
  bool same_user() const;    // the peer process of a Unix socket belongs to this user or root; always true for TCP
  void finish_sending() const;
  void close() { descriptor_.reset(); }

 private:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  OwnedDescriptor descriptor_;
};

// Calls take(port) with the ports of a range, in an order that differs between processes, while it returns EADDRINUSE.
// Returns what the last call returned. The range must not be empty.
int try_ports(const base::PortRange& ports, const std::function<int(std::uint16_t port)>& take);
// Throws kIo: "what: the reason".
[[noreturn]] void fail_ports(const base::PortRange& ports, const std::string& what, int error);

std::string reason_text(int error);  // the text of an errno after ": "; empty for 0
// An errno of accept: the process or the host has no descriptors or memory left right now. The connection stays in the
// kernel's queue, so a later accept may succeed. Other errors stay.
bool is_temporary_accept_error(int error);
int connect_error(const Socket& socket);   // the errno of a connect that has ended; 0: it is connected
bool stays_on_host(const Socket& socket);  // both ends are on one host
// For a socket that only receives: the kernel acknowledges every second packet instead of each one. On loopback, 8
// bytes over plain sockets took 3.63 us one way with it and 4.15 us without.
void acknowledge_later(const Socket& socket);
// Limits the kernel's send buffer to about this many bytes. Without a limit, the kernel adapts the size.
void limit_send_buffer(const Socket& socket, int bytes);
// Sets SO_RCVLOWAT: poll reports input only when this many bytes have arrived, or at the end of the connection.
void wake_at(const Socket& socket, std::size_t bytes);
// How long the peer's kernel has acknowledged nothing, although bytes are under way to it. 0: none are, or a short
// time. A peer that does not read is no reason: its kernel answers nevertheless. Call it once a second or so.
// `since_ns`: 0 at first; the function keeps the beginning of the silence there.
std::int64_t unanswered_ns(const Socket& socket, std::int64_t& since_ns);

struct Reached {
  Socket socket;        // invalid: not reached
  bool silent = false;  // true: there was no answer before the deadline; false: the connection was refused
};

// Connects to several peers concurrently, so that all peers that do not answer together cost one timeout. The results
// have the order of the addresses. Throws if it is aborted, or if a socket cannot be created.
std::vector<Reached> connect_all(std::span<const SocketAddress> peers, const Deadline& deadline);

// While a token exists, it counts as one unproven connection of the process. A connection that a listener accepted is
// unproven until the peer has proven that it belongs to this job. All listeners of a process share one limit, well
// below the process's limit of descriptors. So foreign processes that connect and send nothing cannot use up the
// descriptors that the job needs.
using UnprovenToken = std::shared_ptr<void>;
UnprovenToken take_unproven_token();

// A listener closes a connection whose peer has not identified itself after this time. The limit is long, because on a
// lossy network retransmitted packets arrive many seconds later.
inline constexpr std::int64_t kGreetingLimitNs = 60'000'000'000;
// Delay before the next accept when the process has no descriptors left.
inline constexpr std::int64_t kNoDescriptorsPauseNs = 10'000'000;

// True: a listener with `own` unproven connections must close one of them. Each listener may always keep a few.
bool has_too_many_unproven(std::size_t own);

// The next three work on a listener's list of connections, which is in order of arrival. Its elements have the
// functions is_unproven() and has_spoken(): the peer has begun the handshake.
template <class List>
bool has_too_many_unproven(const List& list) {
  const auto own = std::ranges::count_if(list, [](const auto& one) { return one.is_unproven(); });
  return has_too_many_unproven(static_cast<std::size_t>(own));
}

// Removes one unproven connection. Prefers the oldest one that has sent nothing, so that foreign processes that connect
// and send nothing cannot keep ranks out. A connection that has begun the handshake is removed only if there is no
// other.
template <class List>
void drop_one_unproven(List& list) {
  auto dropped = std::ranges::find_if(list, [](const auto& one) { return one.is_unproven() && !one.has_spoken(); });
  if (dropped == list.end()) dropped = std::ranges::find_if(list, [](const auto& one) { return one.is_unproven(); });
  if (dropped != list.end()) list.erase(dropped);
}

// Accepts all pending connections of this user, and adds make(socket) to the list for each. True: the process is out of
// descriptors, so the listener must not be polled before a delay has passed.
template <class List, class Make>
bool accept_all(const Socket& listener, List& list, const Make& make) {
  int error = 0;
  while (listener.valid()) {
    std::optional<Socket> socket = listener.try_accept(error);
    if (error != 0) drop_one_unproven(list);  // frees a descriptor
    if (!socket) break;
    if (!socket->same_user()) continue;
    list.push_back(make(std::move(*socket)));
    if (has_too_many_unproven(list)) drop_one_unproven(list);
  }
  return error != 0;
}

}  // namespace slip::transport
