// The interface of networks, modelled on NCCL's network plug-ins. A connection carries messages in one direction, from
// a sender to a receiver, into registered memory. It has nine virtual functions; destroying an object closes or
// deregisters it. TCP is the only implementation so far.
//
// A connection has no thread and never blocks: isend and irecv return a request from a fixed pool, and bytes move while
// a thread calls progress(), test() or wait(). One thread at a time may use a connection. The first error sticks: every
// later call throws it, with the rank and the address of the other end.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

inline constexpr std::size_t kNetHandleBytes = 128;
using NetHandle = std::array<std::byte, kNetHandleBytes>;  // where a listener is; plain data that ranks exchange

inline constexpr std::size_t kNetMaxParts = 8;       // messages that one irecv takes
inline constexpr int kNetMaxSockets = 16;            // of a connection
inline constexpr std::size_t kNetMaxRequests = 256;  // of a connection at the same time

struct NetOptions {
  int rank = 0;           // of this end: errors of the other end name it
  int channel = 0;        // of the connection: the other end learns it
  Secret key{};           // must be the same at both ends
  std::string host;       // to listen at; empty: chosen by `interface`
  std::string interface;  // a rule as in SLIP_SOCKET_IFNAME, which counts if this is empty
  // The sender's options decide. Within a host MSG_ZEROCOPY is never used, since the kernel copies there anyway.
  int sockets = 1;                                    // large messages are striped over them
  std::size_t stripe_bytes = std::size_t{128} << 10;  // that one socket carries at a time
  std::size_t zero_copy_from = 0;                     // bytes of the smallest message for MSG_ZEROCOPY; 0: none
};

// Registered bytes; destroying it deregisters them. It must outlive the requests that use it, but not the connection.
class NetMemory {
 public:
  explicit NetMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  virtual ~NetMemory() = default;
  NetMemory(const NetMemory&) = delete;
  NetMemory& operator=(const NetMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

struct NetPart {
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // of a receive: at most
  int tag = 0;
  const NetMemory* memory = nullptr;  // contains the bytes
};

// Belongs to its connection, which uses it again as soon as test() or wait() said that it is done.
struct NetRequest {
  enum class Kind { kSend, kReceive, kFlush };
  Kind kind = Kind::kSend;
  bool done = false;
  std::size_t count = 0;  // parts
  std::array<NetPart, kNetMaxParts> parts;
  std::array<std::size_t, kNetMaxParts> moved{};  // bytes that a receive got
  std::string text() const;                       // "a receive with tag 3 (at most 100 bytes)"
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

  virtual std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) = 0;
  virtual bool progress() = 0;  // moves what can move now; false: nothing moved
  virtual void watch(
      std::vector<pollfd>& all) const = 0;  // adds the descriptors that can make progress() move something

  // True: the request is done and must not be used any more. `moved` gets the bytes of each part of a receive.
  bool test(NetRequest* request, std::span<std::size_t> moved = {});
  // Spins, then yields, then sleeps in poll. The error names the other rank.
  void wait(NetRequest* request, const Deadline& deadline, std::span<std::size_t> moved = {});

  const NetPeer& peer() const { return peer_; }

 protected:
  void require_no_error() const;        // throws the error, if there was one
  [[noreturn]] void fail(Error error);  // keeps and throws it
  void check_part(const NetPart& part) const;
  NetRequest* take_request(NetRequest::Kind kind);  // null: all are in use
  void give_back(NetRequest* request);

  NetPeer peer_;
  std::vector<NetRequest> requests_ = std::vector<NetRequest>(kNetMaxRequests);
  std::size_t index_of(const NetRequest* request) const { return static_cast<std::size_t>(request - requests_.data()); }

 private:
  std::optional<Error> error_;
  std::vector<NetRequest*> free_;
  bool filled_ = false;
};

class NetSender : public NetConnection {
 public:
  // Null: all requests are in use; make progress and try again. A send is done when the caller may change the bytes,
  // which does not mean that they were received.
  // `more`: another send follows at once, and one system call may send both.
  virtual NetRequest* isend(const NetPart& part, bool more) = 0;
  NetRequest* isend(const NetPart& part) { return isend(part, false); }
};

class NetReceiver : public NetConnection {
 public:
  // A message goes to the oldest part with its tag that has none yet. Null as above.
  virtual NetRequest* irecv(std::span<const NetPart> parts) = 0;
  // Done when a device that reads the memory, for example a GPU, sees what these parts received.
  virtual NetRequest* flush(std::span<const NetPart> parts) = 0;
};

class NetListener {
 public:
  virtual ~NetListener() = default;
  // Strangers are refused. With a null deadline it does not wait, and returns null if no rank has connected.
  virtual std::unique_ptr<NetReceiver> accept(const Deadline* deadline) = 0;
  std::unique_ptr<NetReceiver> accept(const Deadline& deadline) { return accept(&deadline); }
  const NetHandle& handle() const { return handle_; }

 protected:
  NetHandle handle_{};
};

class Net {
 public:
  virtual ~Net() = default;
  virtual std::unique_ptr<NetListener> listen(const NetOptions& options) const = 0;
  // Returns without waiting for accept to be called.
  virtual std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                             const Deadline& deadline) const = 0;
};

const Net& net_tcp();
const Net& find_net(std::string_view name);  // an unknown name is an error that lists all

}  // namespace slip
