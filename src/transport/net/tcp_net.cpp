// Establishes TCP connections. The sender opens all sockets of a connection and writes a greeting on each. The listener
// sends no answer, so connect() never waits for accept().
#include <fmt/format.h>

#include <cstring>
#include <list>
#include <set>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/error_text.hpp"
#include "base/fail.hpp"
#include "base/sha256.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/tcp.hpp"
#include "transport/socket/address.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {
namespace {

// The listener closes a socket whose greeting does not arrive within this time. The limit is long, because a lossy
// network may deliver the greeting late.
constexpr std::int64_t kGreetingLimitNs = 60'000'000'000;
// Delay before the next accept when the process has no descriptors left.
constexpr std::int64_t kNoDescriptorsPauseNs = 10'000'000;
// Size of the send buffer between ranks of one host: small, so that the bytes are still in the CPU caches when the peer
// receives them. Measured: two ranks exchanged 2 MiB over plain sockets in 545 to 580 us with the kernel's choice of 4
// MiB, and in 420 to 460 us with this size.
constexpr int kAheadBytes = 512 << 10;
constexpr std::size_t kMaxStripeBytes = std::size_t{1} << 40;  // so that products with it do not overflow
// A path that is not connected within this time is not used. The kernel repeats a lost SYN after 1 and 3 seconds.
constexpr std::int64_t kPathLimitNs = 4'000'000'000;

class TcpListener final : public NetListener {
 public:
  explicit TcpListener(const NetOptions& options) {
    const InterfaceFilter filter(options.interface.empty() ? base::socket_interface_rule() : options.interface);
    const SocketAddress at = options.host.empty() ? own_address(filter) : resolve(options.host, 0).front();
    listeners_.push_back(Socket::listen(at.with_port(0)));
    key_ = options.key;
    contact_.salt = random_secret();
    contact_.address = at.with_port(listeners_.front().local().port()).wire();
    contact_.rank = options.rank;
    std::memcpy(handle_.data(), &contact_, sizeof(contact_));
    // Each rail has its own, bound to the interface, so that acknowledgements return there, too.
    for (const Rail& rail : options.rails) {
      const SocketAddress address(rail.address);
      listeners_.push_back(Socket::listen(address.with_port(0), std::string(rail.name())));
      rails_.push_back(rail);
      rails_.back().address = address.with_port(listeners_.back().local().port()).wire();
    }
  }

  std::unique_ptr<NetReceiver> accept(const Deadline* deadline) override {
    for (;;) {
      accept_all();
      read_greetings();
      if (auto line = complete_connection()) return line;
      if (!deadline) return nullptr;
      wait(*deadline);
    }
  }

 private:
  struct Pending {
    Socket socket;
    std::int64_t since_ns = 0;
    TcpGreeting greeting;
    std::size_t got = 0;
    UnprovenToken token;
    bool greeted() const { return got == sizeof(greeting); }
    bool is_unproven() const { return !greeted(); }
    bool has_spoken() const { return got > 0; }
  };

  // If the process runs out of descriptors, further connections stay in the kernel's queue until descriptors are free
  // again.
  void accept_all() {
    out_of_descriptors_ = false;
    for (const Socket& listener : listeners_) {
      int error = 0;
      while (std::optional<Socket> socket = listener.try_accept(error)) {
        pending_.push_back({std::move(*socket), base::now_ns(), {}, 0, take_unproven_token()});
        if (!has_too_many_unproven(pending_)) continue;
        read_greetings();  // most ranks have sent theirs before they are accepted: these must not be dropped
        if (has_too_many_unproven(pending_)) drop_one_unproven(pending_);
      }
      out_of_descriptors_ = out_of_descriptors_ || error != 0;
    }
    if (out_of_descriptors_) drop_one_unproven(pending_);
  }

  // False: the peer is not a rank of this job.
  bool read_greeting(Pending& one) {
    if (one.greeted()) return true;
    auto bytes = std::as_writable_bytes(std::span(&one.greeting, 1));
    const Socket::Moved moved = one.socket.try_recv(bytes.subspan(one.got));
    one.got += moved.bytes;
    const TcpGreeting usual;
    const std::size_t known = std::min(one.got, sizeof(usual.mark));
    if (moved.ended || std::memcmp(&one.greeting, usual.mark, known) != 0) return false;
    if (!one.greeted()) return base::now_ns() - one.since_ns < kGreetingLimitNs;
    const TcpGreeting& said = one.greeting;
    if (said.version != kTcpVersion || said.sockets < 1 || said.sockets > kNetMaxSockets || said.index < 0 ||
        said.index >= said.sockets || said.stripe_bytes == 0 || said.stripe_bytes > kMaxStripeBytes)
      return false;
    // Accept each greeting only once: an attacker may have recorded it on the network and replay it.
    if (!base::equal_in_constant_time(said.code, said.expected_code(key_, contact_.salt)) ||
        !seen_.emplace(said.connection, said.index).second)
      return false;
    one.token = nullptr;
    return true;
  }

  void read_greetings() {
    pending_.remove_if([this](Pending& one) { return !read_greeting(one); });
  }

  std::unique_ptr<NetReceiver> complete_connection() {
    for (const Pending& first : pending_) {
      if (!first.greeted() || first.greeting.index != 0) continue;
      const TcpGreeting said = first.greeting;
      std::vector<Socket*> places(static_cast<std::size_t>(said.sockets));
      std::size_t found = 0;
      for (Pending& one : pending_) {
        if (!one.greeted() || one.greeting.connection != said.connection || one.greeting.sockets != said.sockets)
          continue;
        Socket*& place = places[static_cast<std::size_t>(one.greeting.index)];
        if (!place) ++found;
        place = &one.socket;
      }
      if (found < places.size()) continue;
      std::vector<Socket> sockets;
      for (Socket* place : places) sockets.push_back(std::move(*place));
      pending_.remove_if(
          [&](const Pending& one) { return one.greeted() && one.greeting.connection == said.connection; });
      NetPeer peer{said.rank, sockets[0].peer().text(), said.channel};
      return std::make_unique<TcpReceiver>(std::move(peer), std::move(sockets), said.stripe_bytes);
    }
    return nullptr;
  }

  void wait(const Deadline& deadline) const {
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
    if (deadline.abort && deadline.abort->is_set()) throw Error(Code::kAborted, what + " was aborted", {});
    if (deadline.at_ns != 0 && base::now_ns() >= deadline.at_ns)
      base::fail(Code::kTimeout, {},
                 "{} took longer than its deadline allows: {} connected and did not say who they are, {} "
                 "belong to connections whose other sockets have not come",
                 what, silent, pending_.size() - silent);
    if (out_of_descriptors_) watched.clear();  // do not poll the listeners now: they would be ready all the time
    wait_for_any(watched, deadline.within(out_of_descriptors_ ? kNoDescriptorsPauseNs : kGreetingLimitNs));
  }

  std::vector<Socket> listeners_;  // at the handle's address, and at the rails
  TcpHandle contact_;
  Secret key_{};
  std::list<Pending> pending_;
  std::set<std::pair<std::uint64_t, std::int32_t>> seen_;  // connection and socket index of all accepted greetings
  bool out_of_descriptors_ = false;
};

TcpHandle read_handle(const NetHandle& handle) {
  TcpHandle contact;
  const TcpHandle expected;
  std::memcpy(&contact, handle.data(), sizeof(contact));
  if (std::memcmp(contact.mark, expected.mark, sizeof(contact.mark)) != 0 || contact.version != kTcpVersion)
    base::fail(Code::kInvalidValue, {},
               "these {} bytes are no handle of the tcp network, version {}: pass on what handle() gave", handle.size(),
               kTcpVersion);
  return contact;
}

class TcpNet final : public Net {
 public:
  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<TcpListener>(options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    if (options.sockets < 1 || options.sockets > kNetMaxSockets || options.stripe_bytes == 0 ||
        options.stripe_bytes > kMaxStripeBytes)
      base::fail(
          Code::kInvalidValue, {},
          "a connection of {} sockets with stripes of {} bytes: 1 to {} sockets and stripes of 1 to {} bytes are "
          "possible",
          options.sockets, options.stripe_bytes, kNetMaxSockets, kMaxStripeBytes);
    const TcpHandle contact = read_handle(handle);
    const SocketAddress to(contact.address);
    std::vector<TcpPathSocket> sockets = connect_paths(options, deadline);
    for (int i = 0; options.paths.empty() && i < options.sockets; ++i)
      sockets.push_back({connect_one(contact, to, deadline), nullptr});
    if (sockets.empty()) sockets.push_back({connect_one(contact, to, deadline), nullptr});  // no path was connected
    greet(sockets, contact, options, deadline);
    const bool stays = stays_on_host(sockets.front().socket);
    for (const TcpPathSocket& one : sockets) {
      if (stays) limit_send_buffer(one.socket, kAheadBytes);
    }
    return std::make_unique<TcpSender>(NetPeer{contact.rank, to.text()}, std::move(sockets), options, stays);
  }

 private:
  static void greet(const std::vector<TcpPathSocket>& sockets, const TcpHandle& contact, const NetOptions& options,
                    const Deadline& deadline) {
    TcpGreeting greeting{.connection = random_number(),
                         .stripe_bytes = options.stripe_bytes,
                         .rank = options.rank,
                         .sockets = static_cast<std::int32_t>(sockets.size()),
                         .channel = options.channel};
    for (const TcpPathSocket& one : sockets) {
      greeting.code = greeting.expected_code(options.key, contact.salt);
      one.socket.send(std::as_bytes(std::span(&greeting, 1)), deadline);
      ++greeting.index;
    }
  }

  // Sockets in the order of the paths, so that neighbouring stripes of a message take different paths.
  static std::vector<TcpPathSocket> connect_paths(const NetOptions& options, const Deadline& deadline) {
    std::vector<TcpPathSocket> sockets;
    std::vector<const RailPath*> paths;
    for (const RailPath& path : options.paths) paths.push_back(&path);
    for (int round = 0; round < options.sockets; ++round) {
      for (const RailPath*& path : paths) {
        if (!path || sockets.size() == static_cast<std::size_t>(kNetMaxSockets)) continue;
        std::optional<Socket> socket = connect_path(*path, options, deadline);
        if (socket) sockets.push_back({std::move(*socket), path});
        else path = nullptr;
      }
    }
    return sockets;
  }

  static std::optional<Socket> connect_path(const RailPath& path, const NetOptions& options, const Deadline& deadline) {
    const LocalEnd from{SocketAddress(path.local.address), std::string(path.local.name())};
    try {
      return Socket::connect(SocketAddress(path.remote.address), deadline.within(kPathLimitNs), &from);
    } catch (const Error& error) {
      if (error.code() == Code::kAborted) throw;
      if (options.lost_path) options.lost_path(path, base::bare_text(error));
      return std::nullopt;
    }
  }

  static Socket connect_one(const TcpHandle& contact, const SocketAddress& to, const Deadline& deadline) {
    try {
      return Socket::connect(to, deadline);
    } catch (const Error& error) {
      base::fail(error.code() == Code::kIo ? Code::kRankLost : error.code(), {}, "rank {}: {}", contact.rank,
                 error.what());
    }
  }
};

}  // namespace

const Net& net_tcp() {
  static const TcpNet kNet;
  return kNet;
}

}  // namespace slip::transport
