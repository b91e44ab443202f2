// The TCP network: how lines are made. The sender opens all sockets of a line and writes a greeting on each; nothing is
// answered, so connect never waits for accept.
#include <fmt/format.h>

#include <cstring>
#include <list>
#include <set>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/sha256.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/tcp.hpp"
#include "transport/socket/address.hpp"
#include "transport/socket/socket.hpp"

namespace slip {
namespace {

// To say which rank one is, once connected: long, for a bad network may deliver it late.
constexpr std::int64_t kGreetingLimitNs = 60'000'000'000;
constexpr std::int64_t kCrowdedPauseNs = 10'000'000;  // when the process has no descriptors left
// Within a host: what is sent ahead should still be in the caches when it is received. Two ranks that exchange 2 MiB
// over plain sockets took 545 to 580 us with the 4 MiB that the kernel came to, and 420 to 460 us so.
constexpr int kAheadBytes = 512 << 10;

class TcpListener final : public NetListener {
 public:
  explicit TcpListener(const NetOptions& options) {
    const InterfaceFilter filter(options.interface.empty() ? env_text("SLIP_SOCKET_IFNAME") : options.interface);
    const SocketAddress at = options.host.empty() ? own_address(filter) : resolve(options.host, 0).front();
    listener_ = Socket::listen(at.with_port(0));
    key_ = options.key;
    told_.salt = random_secret();
    told_.address = at.with_port(listener_.local().port()).wire();
    told_.rank = options.rank;
    std::memcpy(handle_.data(), &told_, sizeof(told_));
  }

  std::unique_ptr<NetReceiver> accept(const Deadline* deadline) override {
    for (;;) {
      take_guests();
      read_greetings();
      if (auto line = whole_line()) return line;
      if (!deadline) return nullptr;
      wait(*deadline);
    }
  }

 private:
  struct Guest {
    Socket socket;
    std::int64_t since_ns = 0;
    TcpGreeting greeting;
    std::size_t got = 0;
    UnprovenToken token;
    bool greeted() const { return got == sizeof(greeting); }
  };

  // Never an error: without descriptors the others stay in the queue until there are some again.
  void take_guests() {
    int error = 0;
    while (std::optional<Socket> socket = listener_.try_accept(error)) {
      guests_.push_back({std::move(*socket), now_ns(), {}, 0, UnprovenToken::take()});
      const auto silent = std::ranges::count_if(guests_, [](const Guest& guest) { return !guest.greeted(); });
      if (has_too_many_unproven(static_cast<std::size_t>(silent))) drop_a_guest();
    }
    crowded_ = error != 0;
    if (crowded_) drop_a_guest();
  }

  // The one that has been silent longest, and one that said something only if there is no other.
  void drop_a_guest() {
    auto dropped = std::ranges::find_if(guests_, [](const Guest& guest) { return guest.got == 0; });
    if (dropped == guests_.end())
      dropped = std::ranges::find_if(guests_, [](const Guest& guest) { return !guest.greeted(); });
    if (dropped != guests_.end()) guests_.erase(dropped);
  }

  // True: it may still be one of ours.
  bool listen_to(Guest& guest) {
    if (guest.greeted()) return true;
    auto bytes = std::as_writable_bytes(std::span(&guest.greeting, 1));
    const Socket::Moved moved = guest.socket.try_recv(bytes.subspan(guest.got));
    guest.got += moved.bytes;
    const TcpGreeting usual;
    const std::size_t known = std::min(guest.got, sizeof(usual.mark));
    if (moved.ended || std::memcmp(&guest.greeting, usual.mark, known) != 0) return false;
    if (!guest.greeted()) return now_ns() - guest.since_ns < kGreetingLimitNs;
    const TcpGreeting& said = guest.greeting;
    if (said.version != kTcpVersion || said.sockets < 1 || said.sockets > kNetMaxSockets || said.index < 0 ||
        said.index >= said.sockets || said.stripe_bytes == 0)
      return false;
    // The same words again, which somebody has read on the network, are no greeting.
    if (!equal_in_constant_time(said.code, said.expected_code(key_, told_.salt)) ||
        !heard_.emplace(said.line, said.index).second)
      return false;
    guest.token.give_back();
    return true;
  }

  void read_greetings() {
    guests_.remove_if([this](Guest& guest) { return !listen_to(guest); });
  }

  std::unique_ptr<NetReceiver> whole_line() {
    for (const Guest& first : guests_) {
      if (!first.greeted() || first.greeting.index != 0) continue;
      const TcpGreeting said = first.greeting;
      std::vector<Socket*> places(static_cast<std::size_t>(said.sockets));
      std::size_t found = 0;
      for (Guest& guest : guests_) {
        if (!guest.greeted() || guest.greeting.line != said.line || guest.greeting.sockets != said.sockets) continue;
        Socket*& place = places[static_cast<std::size_t>(guest.greeting.index)];
        if (!place) ++found;
        place = &guest.socket;
      }
      if (found < places.size()) continue;
      std::vector<Socket> sockets;
      for (Socket* place : places) sockets.push_back(std::move(*place));
      guests_.remove_if([&](const Guest& guest) { return guest.greeted() && guest.greeting.line == said.line; });
      NetPeer peer{said.rank, sockets[0].peer().text(), said.channel};
      return std::make_unique<TcpReceiver>(std::move(peer), std::move(sockets), said.stripe_bytes);
    }
    return nullptr;
  }

  void wait(const Deadline& deadline) const {
    std::vector<pollfd> watched{{listener_.descriptor(), POLLIN, 0}};
    std::size_t silent = 0;
    for (const Guest& guest : guests_) {
      if (guest.greeted()) continue;
      ++silent;
      watched.push_back({guest.socket.descriptor(), POLLIN, 0});
    }
    const std::string what =
        fmt::format("waiting at {} as rank {} for a sender", SocketAddress(told_.address).text(), told_.rank);
    if (deadline.abort && deadline.abort->is_set()) throw Error(Code::kAborted, what + " was aborted", {});
    const std::int64_t now = now_ns();
    if (deadline.at_ns != 0 && now >= deadline.at_ns)
      throw Error(Code::kTimeout,
                  fmt::format("{} took longer than its deadline allows: {} connected and did not say who they are, {} "
                              "are of lines whose other sockets have not come",
                              what, silent, guests_.size() - silent),
                  {});
    const std::int64_t look_again = now + (crowded_ ? kCrowdedPauseNs : kGreetingLimitNs);
    if (crowded_) watched.clear();  // the listener is always ready then
    const bool sooner = deadline.at_ns != 0 && deadline.at_ns < look_again;
    wait_for_any(watched, {sooner ? deadline.at_ns : look_again, deadline.abort});
  }

  Socket listener_;
  TcpHandle told_;
  Secret key_{};
  std::list<Guest> guests_;
  std::set<std::pair<std::uint64_t, std::int32_t>> heard_;  // lines and indices of all greetings
  bool crowded_ = false;
};

TcpHandle read_handle(const NetHandle& handle) {
  TcpHandle told;
  const TcpHandle expected;
  std::memcpy(&told, handle.data(), sizeof(told));
  if (std::memcmp(told.mark, expected.mark, sizeof(told.mark)) != 0 || told.version != kTcpVersion)
    throw Error(Code::kInvalidValue,
                fmt::format("these {} bytes are no handle of the tcp network, version {}: pass on what handle() gave",
                            handle.size(), kTcpVersion),
                {});
  return told;
}

void check_options(const NetOptions& options) {
  if (options.sockets < 1 || options.sockets > kNetMaxSockets || options.stripe_bytes == 0)
    throw Error(Code::kInvalidValue,
                fmt::format("a line of {} sockets with stripes of {} bytes: 1 to {} sockets and stripes of at least 1 "
                            "byte are possible",
                            options.sockets, options.stripe_bytes, kNetMaxSockets),
                {});
}

class TcpNet final : public Net {
 public:
  std::unique_ptr<NetListener> listen(const NetOptions& options) const override {
    return std::make_unique<TcpListener>(options);
  }

  std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                     const Deadline& deadline) const override {
    check_options(options);
    const TcpHandle told = read_handle(handle);
    const SocketAddress to(told.address);
    TcpGreeting greeting{.line = random_number(),
                         .stripe_bytes = options.stripe_bytes,
                         .rank = options.rank,
                         .sockets = options.sockets,
                         .channel = options.channel};
    std::vector<Socket> sockets;
    for (; greeting.index < options.sockets; ++greeting.index) {
      greeting.code = greeting.expected_code(options.key, told.salt);
      sockets.push_back(connect_one(told, to, deadline));
      sockets.back().send(std::as_bytes(std::span(&greeting, 1)), deadline);
    }
    // Within a host the kernel copies all the same.
    const bool stays = sockets.front().stays_here();
    for (const Socket& socket : sockets) {
      if (stays) socket.send_ahead(kAheadBytes);
    }
    const std::size_t zero_copy_from = stays ? 0 : options.zero_copy_from;
    return std::make_unique<TcpSender>(NetPeer{told.rank, to.text()}, std::move(sockets), options.stripe_bytes,
                                       zero_copy_from);
  }

 private:
  static Socket connect_one(const TcpHandle& told, const SocketAddress& to, const Deadline& deadline) {
    try {
      return Socket::connect(to, deadline);
    } catch (const Error& error) {
      throw Error(error.code() == Code::kIo ? Code::kRankLost : error.code(),
                  fmt::format("rank {}: {}", told.rank, error.what()), {});
    }
  }
};

}  // namespace

const Net& net_tcp() {
  static const TcpNet net;
  return net;
}

}  // namespace slip
