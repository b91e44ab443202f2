// The listener sends no answer to a greeting, so a sender never waits for accept().
#include "transport/net/tcp_greeting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/hash.hpp"

namespace slip::transport {
namespace {

// If the process has no free file descriptor for this time, the listener throws. Otherwise the other ranks would wait
// until their timeout.
constexpr std::int64_t kNoDescriptorsLimitNs = 5'000'000'000;
constexpr std::int64_t kFirstPauseNs = 500'000;  // between two attempts to connect; doubles up to the maximum
constexpr std::int64_t kMaxPauseNs = 20'000'000;
// A path that is not connected within this time is not used. The kernel sends a lost SYN again after 1 and 3 seconds.
constexpr std::int64_t kPathLimitNs = 4'000'000'000;

TcpHandle read_handle(const NetHandle& handle, const char (&network)[5]) {
  TcpHandle contact;
  std::memcpy(&contact, handle.data(), sizeof(contact));
  if (std::memcmp(contact.mark, network, sizeof(contact.mark)) != 0 || contact.version != kTcpVersion)
    base::fail(ErrorCode::kInvalidValue, {},
               "these {} bytes are no handle of the {}network, version {}: pass the bytes that handle() returned",
               handle.size(), network, kTcpVersion);
  return contact;
}

// nullopt: the path cannot be used.
std::optional<Socket> connect_path(const RailPath& path, const NetOptions& options, const Deadline& deadline) {
  const LocalEnd from{SocketAddress(path.local.address), std::string(path.local.name())};
  try {
    return Socket::connect(SocketAddress(path.remote.address), deadline.within(kPathLimitNs), &from);
  } catch (const base::TooManyFiles&) {
    throw;  // every other path would need a descriptor, too
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) throw;
    if (options.lost_path) options.lost_path(path, base::bare_text(error));
    return std::nullopt;
  }
}

// Opens `options.sockets` sockets on each path, one path after the other in each round, so that neighbouring stripes of
// a message take different paths. Skips paths that cannot be connected.
void connect_paths(const NetOptions& options, const Deadline& deadline, Greeted& result) {
  std::vector<const RailPath*> paths;
  for (const RailPath& path : options.paths) paths.push_back(&path);
  for (int round = 0; round < options.sockets; ++round) {
    for (const RailPath*& path : paths) {
      if (!path || result.sockets.size() == static_cast<std::size_t>(kNetMaxSockets)) continue;
      std::optional<Socket> socket = connect_path(*path, options, deadline);
      if (socket) {
        result.sockets.push_back(std::move(*socket));
        result.paths.push_back(path);
      } else {
        path = nullptr;
      }
    }
  }
}

// Writes the greeting on each socket.
void greet(const Greeted& connected, const TcpHandle& contact, const NetOptions& options, const Deadline& deadline) {
  TcpGreeting greeting{.connection = random_number(),
                       .stripe_bytes = options.stripe_bytes,
                       .rank = options.rank,
                       .sockets = static_cast<std::int32_t>(connected.sockets.size()),
                       .channel = options.channel};
  for (const Socket& socket : connected.sockets) {
    greeting.code = greeting.expected_code(options.key, contact.salt);
    socket.send(std::as_bytes(std::span(&greeting, 1)), deadline);
    ++greeting.index;
  }
}

}  // namespace

GreetingListener::GreetingListener(const NetOptions& options, const char (&network)[5]) : key_(options.key) {
  const InterfaceFilter filter(options.interface.empty() ? base::socket_interface_rule() : options.interface);
  const SocketAddress at = options.host.empty() ? own_address(filter) : resolve(options.host, 0).front();
  listeners_.push_back(Socket::listen(at.with_port(0)));
  std::memcpy(contact_.mark, network, sizeof(contact_.mark));
  contact_.salt = random_secret();
  contact_.address = at.with_port(listeners_.front().local().port()).wire();
  contact_.rank = options.rank;
  std::memcpy(handle_.data(), &contact_, sizeof(contact_));
}

std::vector<Rail> GreetingListener::listen_at(const std::vector<Rail>& rails) {
  std::vector<Rail> result = rails;
  for (Rail& rail : result) {
    const SocketAddress address(rail.address);
    listeners_.push_back(Socket::listen(address.with_port(0), std::string(rail.name())));
    rail.address = address.with_port(listeners_.back().local().port()).wire();
  }
  return result;
}

std::unique_ptr<NetReceiver> GreetingListener::accept(const Deadline* deadline) {
  for (;;) {
    accept_all();
    read_greetings();
    if (std::optional<Arrived> arrived = complete_connection()) return make_receiver(std::move(*arrived));
    require_descriptors();
    if (!deadline) return nullptr;
    wait(*deadline);
  }
}

// If the process runs out of descriptors, closes one connection that is not authenticated. Further connections stay in
// the kernel's queue until descriptors are free again. Throws if a listener can never accept again.
void GreetingListener::accept_all() {
  accept_error_ = 0;
  for (const Socket& listener : listeners_) {
    int error = 0;
    while (std::optional<Socket> socket = listener.try_accept(error)) {
      pending_.push_back({std::move(*socket), base::now_ns(), {}, 0, take_unproven_token()});
      if (!has_too_many_unproven(pending_)) continue;
      read_greetings();  // most ranks send the greeting before they are accepted: their sockets must not be dropped
      if (has_too_many_unproven(pending_)) drop_one_unproven(pending_);
    }
    if (error != 0 && !is_temporary_accept_error(error))
      base::fail_errno("cannot accept at " + listener.local().text(), error);
    if (error != 0 && !base::is_out_of_descriptors(accept_error_)) accept_error_ = error;
  }
  if (!base::is_out_of_descriptors(accept_error_)) out_since_ns_ = 0;
  else if (out_since_ns_ == 0) out_since_ns_ = base::now_ns();
  if (accept_error_ != 0) drop_one_unproven(pending_);
}

void GreetingListener::require_descriptors() const {
  if (out_since_ns_ == 0 || base::now_ns() - out_since_ns_ < kNoDescriptorsLimitNs) return;
  base::fail_errno(
      fmt::format("cannot accept the connections of other ranks at {}", SocketAddress(contact_.address).text()),
      accept_error_);
}

// Continues to read the greeting. False: the peer is not a rank of this job, or it has not sent a greeting in time.
bool GreetingListener::read_greeting(Pending& one) {
  if (one.greeted()) return true;
  auto bytes = std::as_writable_bytes(std::span(&one.greeting, 1));
  const Socket::Moved moved = one.socket.try_recv(bytes.subspan(one.got));
  one.got += moved.bytes;
  const TcpGreeting expected;
  const std::size_t got_of_mark = std::min(one.got, sizeof(expected.mark));
  if (moved.ended || std::memcmp(&one.greeting, expected.mark, got_of_mark) != 0) return false;
  if (!one.greeted()) return base::now_ns() - one.since_ns < kGreetingLimitNs;
  const TcpGreeting& said = one.greeting;
  if (said.version != kTcpVersion || said.sockets < 1 || said.sockets > kNetMaxSockets || said.index < 0 ||
      said.index >= said.sockets || said.stripe_bytes == 0 || said.stripe_bytes > kMaxStripeBytes)
    return false;
  // Accept each greeting only once: an attacker may have recorded it on the network and replay it.
  if (!base::equal_in_constant_time(said.code, said.expected_code(key_, contact_.salt)) ||
      !seen_.emplace(said.connection, said.index).second)
    return false;
  one.token = nullptr;  // the connection no longer counts as unproven
  return true;
}

void GreetingListener::read_greetings() {
  pending_.remove_if([this](Pending& one) { return !read_greeting(one); });
}

// Removes from pending_ a connection of which all sockets have sent their greetings, and returns it.
std::optional<GreetingListener::Arrived> GreetingListener::complete_connection() {
  for (const Pending& first : pending_) {
    if (!first.greeted() || first.greeting.index != 0) continue;
    const TcpGreeting said = first.greeting;
    std::vector<Socket*> by_index(static_cast<std::size_t>(said.sockets));
    std::size_t found = 0;
    for (Pending& one : pending_) {
      if (!one.greeted() || one.greeting.connection != said.connection || one.greeting.sockets != said.sockets)
        continue;
      Socket*& socket = by_index[static_cast<std::size_t>(one.greeting.index)];
      if (!socket) ++found;
      socket = &one.socket;
    }
    if (found < by_index.size()) continue;
    std::vector<Socket> sockets;
    for (Socket* socket : by_index) sockets.push_back(std::move(*socket));
    pending_.remove_if([&](const Pending& one) { return one.greeted() && one.greeting.connection == said.connection; });
    NetPeer peer{said.rank, sockets[0].peer().text(), said.channel};
    return Arrived{std::move(peer), said, std::move(sockets)};
  }
  return std::nullopt;
}

void GreetingListener::wait(const Deadline& deadline) const {
  std::vector<pollfd> watched;
  for (const Socket& listener : listeners_) watched.push_back({listener.descriptor(), POLLIN, 0});
  std::size_t silent = 0;
  for (const Pending& one : pending_) {
    if (one.greeted()) continue;
    ++silent;
    watched.push_back({one.socket.descriptor(), POLLIN, 0});
  }
  const std::string what =
      fmt::format("waiting at {} as rank {} for a sender", SocketAddress(contact_.address).text(), contact_.rank);
  if (deadline.abort && deadline.abort->is_set()) throw Error(ErrorCode::kAborted, what + " was aborted", {});
  if (deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns)
    base::fail(ErrorCode::kTimeout, {},
               "{} took longer than its deadline allows: {} sockets connected but sent no greeting, {} "
               "belong to connections whose other sockets have not connected",
               what, silent, pending_.size() - silent);
  if (accept_error_ != 0) watched.clear();  // only pause: poll would return at once for a connection in the queue
  wait_for_any(watched, deadline.within(accept_error_ != 0 ? kNoDescriptorsPauseNs : kGreetingLimitNs));
}

GreetingDialer::GreetingDialer(const NetHandle& handle, const char (&network)[5], const NetOptions& options)
    : contact_(read_handle(handle, network)), to_(contact_.address), key_(options.key), pause_ns_(kFirstPauseNs) {
  greeting_.connection = random_number();
  greeting_.stripe_bytes = options.stripe_bytes;
  greeting_.rank = options.rank;
  greeting_.sockets = options.sockets;
  greeting_.channel = options.channel;
}

void GreetingDialer::fail(ErrorCode code, const std::string& text) const {
  base::fail(code, {}, "{}{}", contact_.rank < 0 ? std::string() : fmt::format("rank {}: ", contact_.rank), text);
}

bool GreetingDialer::advance() {
  while (greeting_.index < greeting_.sockets) {
    if (!connected_ && !open_next()) return false;
    if (written_ == 0) greeting_.code = greeting_.expected_code(key_, contact_.salt);
    const Socket::Moved moved = opening_.try_send(std::as_bytes(std::span(&greeting_, 1)).subspan(written_));
    if (moved.ended)
      fail(ErrorCode::kRankLost, fmt::format("{} closed the connection{}", to_.text(), reason_text(moved.error)));
    written_ += moved.bytes;
    if (written_ < sizeof(greeting_)) return false;
    sockets_.push_back(std::exchange(opening_, Socket()));
    connected_ = false;
    written_ = 0;
    ++greeting_.index;
  }
  return true;
}

// False: the kernel still connects, or the dialer pauses before the next attempt.
bool GreetingDialer::open_next() {
  int error = 0;
  if (!opening_.valid()) {
    if (base::now_ns() < pause_end_ns_) return false;
    opening_ = Socket::begin_connect(to_, error);
    if (error == EINPROGRESS) return false;
  } else {
    if (wait_for(opening_.descriptor(), POLLOUT, {base::now_ns(), nullptr}) != Waited::kReady) return false;
    error = connect_error(opening_);
  }
  connected_ = error == 0;
  if (connected_) return true;
  opening_.close();
  // EAGAIN and EADDRNOTAVAIL: the kernel has no routing entry or local port left at the moment.
  if (error != EAGAIN && error != EADDRNOTAVAIL)
    fail(ErrorCode::kRankLost, fmt::format("cannot connect to {}: {}", to_.text(), std::strerror(error)));
  error_ = error;
  pause_end_ns_ = base::now_ns() + pause_ns_;
  pause_ns_ = std::min(2 * pause_ns_, kMaxPauseNs);
  return false;
}

void GreetingDialer::wait(const Deadline& deadline) {
  const Waited waited = opening_.valid()
                            ? wait_for(opening_.descriptor(), POLLOUT, deadline)
                            : wait_a_moment(std::max<std::int64_t>(pause_end_ns_ - base::now_ns(), 0), deadline);
  if (waited == Waited::kReady) return;
  if (waited == Waited::kAborted) fail(ErrorCode::kAborted, fmt::format("connecting to {} was aborted", to_.text()));
  fail(ErrorCode::kTimeout,
       opening_.valid()
           ? fmt::format("connecting to {} took longer than its deadline allows", to_.text())
           : fmt::format("cannot connect to {} before the deadline: {}", to_.text(), std::strerror(error_)));
}

Greeted connect_and_greet(const NetHandle& handle, const char (&network)[5], const NetOptions& options,
                          const Deadline& deadline) {
  const TcpHandle contact = read_handle(handle, network);
  Greeted result{NetPeer{contact.rank, SocketAddress(contact.address).text()}, {}};
  connect_paths(options, deadline, result);
  if (!result.sockets.empty()) {
    greet(result, contact, options, deadline);
    return result;
  }
  GreetingDialer dialer(handle, network, options);
  while (!dialer.advance()) dialer.wait(deadline);
  return dialer.take();
}

}  // namespace slip::transport
