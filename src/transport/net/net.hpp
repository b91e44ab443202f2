// The interface of network transports; the proxy (proxy.hpp) is its user. A connection carries messages in one
// direction, from a sender to a receiver. They arrive in the order in which they were sent. The interface has six
// virtual functions; destroying an object closes it. TCP is the only implementation so far.
//
// A connection has no thread. start() does not block: it returns a request. Bytes move only while a thread calls
// start() or progress(). One thread at a time may use a connection. The connection keeps its first error: every later
// call throws that error again. It names the rank and the address of the peer.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

inline constexpr std::size_t kNetHandleBytes = 128;
using NetHandle = std::array<std::byte, kNetHandleBytes>;  // the address of a listener: plain data that ranks exchange

inline constexpr int kNetMaxSockets = 16;            // per connection
inline constexpr std::size_t kNetMaxRequests = 256;  // requests of one connection that may be under way

struct NetOptions {
  int rank = 0;      // this process's rank: the peer's errors name it
  int channel = 0;   // number of the connection: the sender passes it to the receiver, see NetPeer
  Secret key{};      // authenticates the connection: sender and receiver need the same key
  std::string host;  // host name or address to listen at
  // The sender's values of the next three options count; the receiver's are ignored. Between ranks of one host
  // MSG_ZEROCOPY is never used, because the kernel copies there anyway.
  int sockets = 1;                                    // number of sockets; large messages are striped over them
  std::size_t stripe_bytes = std::size_t{128} << 10;  // length of a stripe
  std::size_t zero_copy_from = 0;  // messages of at least this many bytes are sent with MSG_ZEROCOPY; 0: none are
};

// A message that is sent or received. The connection owns the requests and uses them in turn: a request keeps its
// values until kNetMaxRequests more have begun.
struct NetRequest {
  std::span<std::byte> bytes;  // for a receive: room for the message
  bool done = true;
  std::size_t moved = 0;  // the length of the message; set when it is done
};

struct NetPeer {
  int rank = 0;
  std::string address;
  int channel = 0;
  std::string text() const;  // "rank 3 at 192.0.2.1:80"
};

class NetConnection {
 public:
  virtual ~NetConnection() = default;
  NetConnection() = default;
  NetConnection(const NetConnection&) = delete;
  NetConnection& operator=(const NetConnection&) = delete;

  // Begins to send these bytes, or to receive a message into them. Null: kNetMaxRequests are under way; call progress()
  // and try again. A send is done when the caller may overwrite the bytes. The peer may not have received them yet.
  // `more`: another send follows at once, so that one system call can send both.
  virtual NetRequest* start(std::span<std::byte> bytes, bool more) = 0;
  virtual bool progress() = 0;  // sends or receives what is possible without blocking; false: no bytes moved
  // Appends the descriptors to poll: when one of them is ready, progress() can move bytes.
  virtual void watch(std::vector<pollfd>& all) const = 0;

  const NetPeer& peer() const { return peer_; }

 protected:
  void require_no_error() const;                         // throws the error, if there was one
  [[noreturn]] void fail(Error error);                   // stores the error for later calls and throws it
  NetRequest* take_request(std::span<std::byte> bytes);  // null: kNetMaxRequests are under way
  NetRequest& request(std::uint64_t number) { return requests_[number % kNetMaxRequests]; }

  NetPeer peer_;
  std::uint64_t begun_ = 0;  // requests so far; they are numbered from 0

 private:
  std::optional<Error> error_;
  std::vector<NetRequest> requests_ = std::vector<NetRequest>(kNetMaxRequests);
};

class NetListener {
 public:
  virtual ~NetListener() = default;
  // Does not wait: returns null if no rank has connected. Connections that do not authenticate with the key are closed.
  virtual std::unique_ptr<NetConnection> accept() = 0;
  const NetHandle& handle() const { return handle_; }

 protected:
  NetHandle handle_{};
};

class Net {
 public:
  virtual ~Net() = default;
  virtual std::unique_ptr<NetListener> listen(const NetOptions& options) const = 0;
  // The sender's end. Returns without waiting until the peer calls accept().
  virtual std::unique_ptr<NetConnection> connect(const NetHandle& handle, const NetOptions& options,
                                                 const Deadline& deadline) const = 0;
};

const Net& net_tcp();

}  // namespace slip::transport
