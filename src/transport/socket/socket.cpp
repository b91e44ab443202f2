#include "transport/socket/socket.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"

namespace slip::transport {
namespace {

constexpr std::int64_t kFirstPauseNs = 500'000;  // between two attempts to connect; doubles up to the maximum
constexpr std::int64_t kMaxPauseNs = 20'000'000;

int poll_timeout_ms(std::int64_t deadline_ns) {
  if (deadline_ns == 0) return -1;
  const std::int64_t rest = deadline_ns - base::now_ns();
  if (rest <= 0) return 0;
  return static_cast<int>(std::min<std::int64_t>((rest + 999'999) / 1'000'000, std::numeric_limits<int>::max()));
}

[[noreturn]] void fail_wait(Waited why, const std::string& what) {
  if (why == Waited::kAborted) throw Error(ErrorCode::kAborted, what + " was aborted", {});
  throw Error(ErrorCode::kTimeout, what + " took longer than its deadline allows", {});
}

void set_option(int descriptor, int level, int option, int value = 1) {
  static_cast<void>(::setsockopt(descriptor, level, option, &value, sizeof(value)));
}

SocketAddress address_of(int (*ask)(int, sockaddr*, socklen_t*), int descriptor) {
  sockaddr_storage storage{};
  socklen_t bytes = sizeof(storage);
  if (ask(descriptor, reinterpret_cast<sockaddr*>(&storage), &bytes) != 0) return {};
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), bytes);
}

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

Socket::Moved sent(ssize_t count) {
  if (count >= 0) return {static_cast<std::size_t>(count), false, 0};
  if (would_block(errno) || errno == EINTR) return {};
  return {0, true, errno};
}

Socket::Moved received(ssize_t count) {
  if (count == 0) return {0, true, 0};
  return sent(count);
}

int open_descriptor(int family) {
  const int descriptor = ::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) base::fail_errno("cannot make a socket", errno);
  return descriptor;
}

// Disables Nagle's algorithm, so that small messages are sent at once. Also asks for linear timeouts: if few packets
// are in flight, the kernel retransmits a lost one every 200 ms at first, instead of doubling the interval. Otherwise,
// with a third of all packets lost, a heartbeat would often be late by seconds, and its rank would be declared lost.
void set_low_delay(int descriptor, int family) {
  if (family == AF_UNIX) return;
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY);
  set_option(descriptor, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS);
}

// Returns 0 or an errno. Before Linux 5.7 only a privileged process may do this. Otherwise the routing table chooses
// the interface, and that is not an error here. "eth0:1" is the label of an address of eth0: the kernel lists it as an
// interface, but binds only to eth0.
int bind_to_interface(int descriptor, const std::string& interface) {
  const std::string device = interface.substr(0, interface.find(':'));
  const auto bytes = static_cast<socklen_t>(device.size() + 1);
  const bool bound = ::setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, device.c_str(), bytes) == 0;
  return bound || errno == EPERM ? 0 : errno;
}

// Returns 0 or an errno. The address alone does not choose the interface: if two interfaces have a route to the peer,
// the kernel uses the first.
int bind_to(int descriptor, const LocalEnd& from) {
  // Lets connect() choose the port. Otherwise bind() would reserve one for all peers.
  set_option(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);
  const SocketAddress address = from.address.with_port(0);
  // ENODEV: the interface has lost the address. connect() uses EADDRNOTAVAIL for a temporary lack of ports.
  if (::bind(descriptor, address.data(), address.bytes()) != 0) return errno == EADDRNOTAVAIL ? ENODEV : errno;
  return bind_to_interface(descriptor, from.interface);
}

constexpr std::size_t kMinPerListener = 8;  // unproven connections that each listener may always keep
constexpr std::size_t kShare = 8;           // unproven connections use at most 1/8 of the descriptors of the process
constexpr std::size_t kMaxUnproven = 256;

// relaxed everywhere: it is only a counter, and exceeding the limit by a few for a moment does no harm.
std::atomic<std::size_t> g_unproven{0};

std::size_t max_unproven() {
  rlimit descriptors{};
  if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kMaxUnproven;
  return std::min<std::size_t>(descriptors.rlim_cur / kShare, kMaxUnproven);
}

}  // namespace

Deadline Deadline::within(std::int64_t limit_ns) const {
  const std::int64_t end = base::now_ns() + limit_ns;
  return {at_ns == 0 ? end : std::min(at_ns, end), abort};
}

Waited wait_for(int descriptor, short events, const Deadline& deadline) {
  for (;;) {
    pollfd watched[2] = {{descriptor, events, 0}, {deadline.abort ? deadline.abort->descriptor() : -1, POLLIN, 0}};
    const int count = ::poll(watched, 2, poll_timeout_ms(deadline.at_ns));
    if (count < 0 && errno != EINTR) base::fail_errno("cannot wait for a socket", errno);
    if (deadline.abort && deadline.abort->is_set()) return Waited::kAborted;
    if (count > 0 && watched[0].revents != 0) return Waited::kReady;
    if (deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns) return Waited::kTimeout;
  }
}

void wait_for_any(std::span<const pollfd> watched, const Deadline& deadline) {
  std::vector<pollfd> all(watched.begin(), watched.end());
  all.push_back({deadline.abort ? deadline.abort->descriptor() : -1, POLLIN, 0});
  // Nanoseconds, because the limit may be shorter than a millisecond.
  const std::int64_t rest = std::max<std::int64_t>(deadline.at_ns - base::now_ns(), 0);
  const timespec limit{rest / 1'000'000'000, rest % 1'000'000'000};
  const int count = ::ppoll(all.data(), all.size(), deadline.at_ns == 0 ? nullptr : &limit, nullptr);
  if (count < 0 && errno != EINTR) base::fail_errno("cannot wait for sockets", errno);
}

void wait_for_any(std::span<pollfd> watched, std::int64_t limit_ns) {
  const timespec limit{limit_ns / 1'000'000'000, limit_ns % 1'000'000'000};
  const int count = ::ppoll(watched.data(), watched.size(), &limit, nullptr);
  if (count < 0 && errno != EINTR) base::fail_errno("cannot wait for sockets", errno);
}

Waited wait_a_moment(std::int64_t limit_ns, const Deadline& deadline) {
  const Deadline end = deadline.within(limit_ns);
  const Waited waited = wait_for(-1, 0, end);
  return waited == Waited::kTimeout && end.at_ns != deadline.at_ns ? Waited::kReady : waited;
}

void poll_until(std::span<pollfd> watched, std::int64_t time_ns) {
  static_cast<void>(::poll(watched.data(), watched.size(), poll_timeout_ms(time_ns)));
}

int try_ports(const base::PortRange& ports, const std::function<int(std::uint16_t port)>& take) {
  static std::atomic<unsigned> calls{0};
  const auto count = static_cast<unsigned>(ports.last - ports.first + 1);
  // Processes that begin at different ports rarely try one that is in use. relaxed: only the number counts.
  const unsigned begin = static_cast<unsigned>(::getpid()) * 61 + calls.fetch_add(1, std::memory_order_relaxed);
  int error = EADDRINUSE;
  for (unsigned i = 0; i < count && error == EADDRINUSE; ++i)
    error = take(static_cast<std::uint16_t>(static_cast<unsigned>(ports.first) + (begin + i) % count));
  return error;
}

void fail_ports(const base::PortRange& ports, const std::string& what, int error) {
  if (error != EADDRINUSE || ports.first == 0) base::fail_errno(what, error);
  base::fail(ErrorCode::kIo, {}, "{}: all ports of SLIP_PORTS={}-{} are in use: give a larger range", what, ports.first,
             ports.last);
}

Socket Socket::listen(const SocketAddress& address, const std::string& interface) {
  Socket socket;
  // SO_REUSEADDR also takes a port at which old connections are in TIME_WAIT, or that a PortReservation holds. If it is
  // set after bind(), the port must be free, but the next listener can take it with the option.
  enum class Port { kFree, kReused };
  const auto try_listen = [&](std::uint16_t port, Port wanted) {
    constexpr int kBacklog = 1024;
    const SocketAddress where = address.is_tcp() ? address.with_port(port) : address;
    socket = Socket(open_descriptor(where.family()));
    if (wanted == Port::kReused) set_option(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR);
    if (where.family() == AF_INET6) set_option(socket.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY);
    if (const int error = interface.empty() ? 0 : bind_to_interface(socket.descriptor(), interface)) return error;
    if (::bind(socket.descriptor(), where.data(), where.bytes()) != 0) return errno;
    if (wanted == Port::kFree) set_option(socket.descriptor(), SOL_SOCKET, SO_REUSEADDR);
    return ::listen(socket.descriptor(), kBacklog) == 0 ? 0 : errno;
  };
  const base::PortRange ports = address.is_tcp() && address.port() == 0 ? base::env().ports : base::PortRange{};
  int error = EADDRINUSE;
  if (ports.first == 0) error = try_listen(address.port(), Port::kReused);
  else {
    for (const Port wanted : {Port::kFree, Port::kReused}) {
      if (error == EADDRINUSE) error = try_ports(ports, [&](std::uint16_t port) { return try_listen(port, wanted); });
    }
  }
  const std::string through = interface.empty() ? "" : " through " + interface;
  if (error != 0) fail_ports(ports, "cannot listen at " + address.text() + through, error);
  return socket;
}

Socket Socket::begin_connect(const SocketAddress& peer, int& error, const LocalEnd* from) {
  Socket socket(open_descriptor(peer.family()));
  set_low_delay(socket.descriptor(), peer.family());
  error = from ? bind_to(socket.descriptor(), *from) : 0;
  if (error != 0) return {};
  if (::connect(socket.descriptor(), peer.data(), peer.bytes()) == 0) return socket;
  error = errno == EINTR ? EINPROGRESS : errno;
  return error == EINPROGRESS ? std::move(socket) : Socket();
}

// EAGAIN: the queue of a Unix listener is full. EADDRNOTAVAIL: no local port is free.
static bool is_worth_another_try(int error) { return error == EAGAIN || error == EADDRNOTAVAIL; }

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t bytes = sizeof(error);
  ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  return error;
}

Socket Socket::connect(const SocketAddress& peer, const Deadline& deadline, const LocalEnd* from) {
  std::int64_t pause = kFirstPauseNs;
  for (;;) {
    int error = 0;
    Socket socket = begin_connect(peer, error, from);
    if (error == EINPROGRESS) {
      const Waited waited = wait_for(socket.descriptor(), POLLOUT, deadline);
      if (waited != Waited::kReady) fail_wait(waited, "connecting to " + peer.text());
      error = connect_error(socket);
    }
    if (error == 0) return socket;
    socket.close();
    const std::string what = "cannot connect to " + peer.text();
    if (!is_worth_another_try(error)) base::fail_errno(what, error);
    const Waited waited = wait_a_moment(pause, deadline);
    if (waited == Waited::kAborted) fail_wait(waited, "connecting to " + peer.text());
    if (waited == Waited::kTimeout)
      base::fail(ErrorCode::kTimeout, {}, "{} before the deadline: {}", what, std::strerror(error));
    pause = std::min(2 * pause, kMaxPauseNs);
  }
}

// Errors of accept(2) that concern one connection, which is lost: the next call may succeed. ECONNABORTED: its peer has
// closed it already. EPERM: the firewall forbids it. The others: errors of the network that the new socket had already.
static bool is_error_of_connection(int error) {
  switch (error) {
    case ECONNABORTED:
    case EPERM:
    case EPROTO:
    case ENOPROTOOPT:
    case ENONET:
    case ENETDOWN:
    case ENETUNREACH:
    case EHOSTDOWN:
    case EHOSTUNREACH: return true;
    default: return false;
  }
}

std::optional<Socket> Socket::try_accept(int& error) const {
  for (;;) {
    const int accepted = ::accept4(descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    error = accepted < 0 ? errno : 0;
    if (accepted >= 0) {
      set_low_delay(accepted, local().family());
      return Socket(accepted);
    }
    if (would_block(error)) error = 0;
    if (error != EINTR && !is_error_of_connection(error)) return std::nullopt;
  }
}

bool is_temporary_accept_error(int error) {
  return base::is_out_of_descriptors(error) || error == ENOBUFS || error == ENOMEM;
}

Socket Socket::accept(const Deadline& deadline) const {
  for (;;) {
    int error = 0;
    if (std::optional<Socket> socket = try_accept(error)) return std::move(*socket);
    if (error != 0 && !is_temporary_accept_error(error)) base::fail_errno("cannot accept at " + local().text(), error);
    const Waited waited =
        error != 0 ? wait_a_moment(kNoDescriptorsPauseNs, deadline) : wait_for(descriptor(), POLLIN, deadline);
    if (waited != Waited::kReady) fail_wait(waited, "waiting for a connection to " + local().text());
  }
}

Socket::Moved Socket::try_send(std::span<const std::byte> bytes) const {
  return sent(::send(descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

Socket::Moved Socket::try_recv(std::span<std::byte> bytes) const {
  return received(::recv(descriptor(), bytes.data(), bytes.size(), 0));
}

Socket::Moved Socket::try_send(std::span<const iovec> pieces, int flags) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(pieces.data());
  message.msg_iovlen = pieces.size();
  return sent(::sendmsg(descriptor(), &message, flags | MSG_NOSIGNAL));
}

Socket::Moved Socket::try_recv(std::span<const iovec> pieces) const {
  return received(::readv(descriptor(), pieces.data(), static_cast<int>(pieces.size())));
}

void Socket::send(std::span<const std::byte> bytes, const Deadline& deadline) const {
  while (!bytes.empty()) {
    const Moved moved = try_send(bytes);
    if (moved.ended) base::fail_errno("sending from " + text(), moved.error);
    bytes = bytes.subspan(moved.bytes);
    if (moved.bytes > 0) continue;
    const Waited waited = wait_for(descriptor(), POLLOUT, deadline);
    if (waited != Waited::kReady) fail_wait(waited, "sending from " + text());
  }
}

void Socket::recv(std::span<std::byte> bytes, const Deadline& deadline) const {
  const std::size_t wanted = bytes.size();
  while (!bytes.empty()) {
    const Moved moved = try_recv(bytes);
    if (moved.ended)
      base::fail(ErrorCode::kIo, {}, "{}: the other end closed after {} of {} bytes{}", text(), wanted - bytes.size(),
                 wanted, reason_text(moved.error));
    bytes = bytes.subspan(moved.bytes);
    if (moved.bytes > 0) continue;
    const Waited waited = wait_for(descriptor(), POLLIN, deadline);
    if (waited != Waited::kReady) fail_wait(waited, "receiving, " + text() + ",");
  }
}

SocketAddress Socket::local() const { return address_of(&::getsockname, descriptor()); }
SocketAddress Socket::peer() const { return address_of(&::getpeername, descriptor()); }
std::string Socket::text() const { return local().text() + " to " + peer().text(); }
void acknowledge_later(const Socket& socket) { set_option(socket.descriptor(), IPPROTO_TCP, TCP_QUICKACK, 0); }
void limit_send_buffer(const Socket& socket, int bytes) {
  set_option(socket.descriptor(), SOL_SOCKET, SO_SNDBUF, bytes);
}
void wake_at(const Socket& socket, std::size_t bytes) {
  set_option(socket.descriptor(), SOL_SOCKET, SO_RCVLOWAT, static_cast<int>(bytes));
}
std::int64_t unanswered_ns(const Socket& socket, std::int64_t& since_ns) {
  tcp_info info{};
  socklen_t bytes = sizeof(info);
  const bool known = ::getsockopt(socket.descriptor(), IPPROTO_TCP, TCP_INFO, &info, &bytes) == 0;
  // If the kernel cannot send at all, because the interface is down, nothing is unacknowledged. It then probes the
  // connection, as for a peer that does not read, but the probes get no answer.
  if (!known || (info.tcpi_unacked == 0 && info.tcpi_probes == 0)) return since_ns = 0;
  // If the connection was idle before, the last acknowledgement is older than the bytes. So the silence begins with the
  // first call that finds bytes under way, or with a later acknowledgement.
  const std::int64_t now = base::now_ns(), answered = now - std::int64_t{1'000'000} * info.tcpi_last_ack_recv;
  since_ns = since_ns == 0 ? now : std::max(since_ns, answered);
  return now - since_ns;
}
std::string reason_text(int error) { return error == 0 ? std::string() : fmt::format(": {}", std::strerror(error)); }
bool stays_on_host(const Socket& socket) { return socket.local().host() == socket.peer().host(); }
void Socket::finish_sending() const { static_cast<void>(::shutdown(descriptor(), SHUT_WR)); }

bool Socket::same_user() const {
  if (local().family() != AF_UNIX) return true;
  ucred other{};
  socklen_t bytes = sizeof(other);
  if (::getsockopt(descriptor(), SOL_SOCKET, SO_PEERCRED, &other, &bytes) != 0) return false;
  return other.uid == ::geteuid() || other.uid == 0;
}

std::vector<Reached> connect_all(std::span<const SocketAddress> peers, const Deadline& deadline) {
  std::vector<Reached> result(peers.size());
  std::vector<std::size_t> pending, not_begun(peers.size());
  std::iota(not_begun.begin(), not_begun.end(), std::size_t{0});
  for (;;) {
    std::erase_if(not_begun, [&](std::size_t i) {
      int error = 0;
      result[i].socket = Socket::begin_connect(peers[i], error);
      if (error == EINPROGRESS) pending.push_back(i);
      return !is_worth_another_try(error);
    });
    if (pending.empty() && not_begun.empty()) return result;
    std::vector<pollfd> watched;
    for (const std::size_t i : pending) watched.push_back({result[i].socket.descriptor(), POLLOUT, 0});
    wait_for_any(watched, not_begun.empty() ? deadline : deadline.within(kMaxPauseNs));
    if (deadline.abort && deadline.abort->is_set())
      base::fail(ErrorCode::kAborted, {}, "connecting to others was aborted");
    const bool late = deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns;
    if (late) {
      for (const std::size_t i : std::exchange(not_begun, {})) result[i].silent = true;
    }
    std::erase_if(pending, [&](std::size_t i) {
      const Waited waited = wait_for(result[i].socket.descriptor(), POLLOUT, {base::now_ns(), nullptr});
      if (waited != Waited::kReady && !late) return false;
      result[i].silent = waited != Waited::kReady;
      if (result[i].silent || connect_error(result[i].socket) != 0) result[i].socket.close();
      return true;
    });
  }
}

UnprovenToken take_unproven_token() {
  g_unproven.fetch_add(1, std::memory_order_relaxed);
  return {&g_unproven, [](void*) { g_unproven.fetch_sub(1, std::memory_order_relaxed); }};
}

bool has_too_many_unproven(std::size_t own) {
  return own > kMinPerListener && g_unproven.load(std::memory_order_relaxed) > max_unproven();
}

}  // namespace slip::transport
