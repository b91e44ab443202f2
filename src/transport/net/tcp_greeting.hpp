// The TCP sockets with which a network connection begins. The listener's handle names an address; the sender connects
// to it and writes a greeting on each socket, which proves that both belong to the same job. The TCP transport sends
// its messages over these sockets. The other transports exchange addresses over one of them; when it ends, the peer is
// gone.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/address.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

static_assert(std::endian::native == std::endian::little, "headers are little-endian, and so are our hosts");

inline constexpr std::uint32_t kTcpVersion = 4;
inline constexpr std::size_t kMaxStripeBytes = std::size_t{1} << 40;  // so that products with it do not overflow

struct TcpHandle {
  char mark[4] = {'t', 'c', 'p', ' '};  // the network that the listener belongs to
  std::uint32_t version = kTcpVersion;
  Secret salt{};  // random: makes a greeting valid at this listener only
  SocketAddress::WireFormat address;
  std::int32_t rank = 0;
};
static_assert(sizeof(TcpHandle) <= kNetHandleBytes);

// The first bytes that the sender writes on each socket.
struct TcpGreeting {
  char mark[8] = {'s', 'l', 'i', 'p', ' ', 't', 'c', 'p'};
  std::uint64_t connection = 0;  // random; the same on all sockets of one connection
  std::uint64_t stripe_bytes = 0;
  std::uint32_t version = kTcpVersion;
  std::int32_t rank = 0;
  std::int32_t index = 0, sockets = 0;
  std::int32_t channel = 0, reserved = 0;
  Secret code{};  // HMAC of the fields before it, with a key derived from the job's key and the listener's salt

  Secret expected_code(const Secret& key, const Secret& salt) const {
    const Secret own = derive(key, "slip line", salt);
    return derive(own, "greeting", std::as_bytes(std::span(this, 1)).first(offsetof(TcpGreeting, code)));
  }
};

// Accepts connections and reads their greetings; the networks derive their listeners from it. One thread at a time may
// use it.
class GreetingListener : public NetListener, base::NoCopy {
 public:
  std::unique_ptr<NetReceiver> accept(const Deadline* deadline) override;

 protected:
  // `network`: the handle's mark.
  GreetingListener(const NetOptions& options, const char (&network)[5]);
  // Also listens at these rails, each bound to its interface, so that acknowledgements return there, too. Returns them
  // with the ports.
  std::vector<Rail> listen_at(const std::vector<Rail>& rails);
  struct Arrived {
    NetPeer peer;
    TcpGreeting said;
    std::vector<Socket> sockets;  // all sockets of the connection, by index
  };
  virtual std::unique_ptr<NetReceiver> make_receiver(Arrived arrived) = 0;

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

  void accept_all();
  void require_descriptors() const;  // throws if there have been none for long
  bool read_greeting(Pending& one);
  void read_greetings();
  std::optional<Arrived> complete_connection();
  void wait(const Deadline& deadline) const;

  std::vector<Socket> listeners_;  // at the handle's address, and at the rails
  TcpHandle contact_;
  Secret key_{};
  std::list<Pending> pending_;
  std::set<std::pair<std::uint64_t, std::int32_t>> seen_;  // connection and socket index of all accepted greetings
  // The temporary errno of the last accept_all(); 0: none. One for a lack of descriptors precedes one for memory.
  int accept_error_ = 0;
  std::int64_t out_since_ns_ = 0;  // when accept() first found no descriptor left; 0: it succeeds
};

// The sender's side: opens all sockets, on the paths of the options if there are any, and writes a greeting on each.
// Does not wait until the peer accepts them.
struct Greeted {
  NetPeer peer;
  std::vector<Socket> sockets;
  std::vector<const RailPath*> paths = {};  // by socket, of NetOptions::paths; empty: not bound to interfaces
};
Greeted connect_and_greet(const NetHandle& handle, const char (&network)[5], const NetOptions& options,
                          const Deadline& deadline);

// The same without waiting: opens the sockets one after the other and writes their greetings.
class GreetingDialer : base::NoCopy {
 public:
  GreetingDialer(const NetHandle& handle, const char (&network)[5], const NetOptions& options);
  // Continues as far as possible without waiting. True: all greetings are written. Throws kRankLost if the listener is
  // gone.
  bool advance();
  void wait(const Deadline& deadline);  // until advance() can go on; throws at the deadline
  Greeted take() { return {NetPeer{contact_.rank, to_.text()}, std::move(sockets_)}; }

 private:
  bool open_next();
  [[noreturn]] void fail(ErrorCode code, const std::string& text) const;

  const TcpHandle contact_;
  const SocketAddress to_;
  const Secret key_;
  TcpGreeting greeting_;
  Socket opening_;           // its greeting is not written yet
  bool connected_ = false;   // opening_ is connected
  std::size_t written_ = 0;  // bytes of the greeting
  int error_ = 0;            // errno of the last attempt, after which the dialer pauses
  std::int64_t pause_ns_, pause_end_ns_ = 0;
  std::vector<Socket> sockets_;
};

}  // namespace slip::transport
