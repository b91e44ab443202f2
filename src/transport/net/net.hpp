// The interface of network transports, modelled on NCCL's network plug-ins; the proxy (proxy.hpp) is its main user. A
// connection carries messages in one direction, from a sender to a receiver, into registered memory. Destroying an
// object closes or deregisters it. The interface is implemented for TCP (tcp.hpp), UCX (net_ucx) and NCCL's plug-ins
// (net_plugin).
//
// A connection has no thread. isend and irecv do not block: they return a request from a fixed pool. Bytes move only
// while a thread calls progress(), test() or wait(). One thread at a time may use a connection. The connection keeps
// its first error: every later call throws that error again. It names the rank and the address of the peer.
#pragma once

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fail.hpp"
#include "base/sync.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/net/rails.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

inline constexpr std::size_t kNetHandleBytes = 128;
using NetHandle = std::array<std::byte, kNetHandleBytes>;  // the address of a listener: plain data that ranks exchange

inline constexpr std::size_t kNetMaxParts = 8;       // maximum number of messages that one irecv can receive
inline constexpr int kNetMaxSockets = 16;            // per connection
inline constexpr std::size_t kNetMaxRequests = 256;  // requests of one connection that may be in use at the same time
inline constexpr std::int64_t kNetMaxSleepNs = 1'000'000'000;  // the longest sleep between two calls of progress()

struct NetOptions {
  int rank = 0;           // this process's rank: the peer's errors name it
  int channel = 0;        // number of the connection: the sender passes it to the receiver, see NetPeer
  Secret key{};           // authenticates the connection: sender and receiver need the same key
  std::string host;       // host name or address to listen at; empty: chosen by `interface`
  std::string interface;  // a rule with the syntax of SLIP_SOCKET_IFNAME; empty: that variable applies
  // TCP only. A listener also listens at each of `rails`. A sender with `paths` opens `sockets` sockets on each of them
  // (kNetMaxSockets in all), bound to the interface. A path that cannot be connected within a few seconds is passed to
  // `lost_path` with the reason, and the sockets use the others. If none is left, they use the handle's address.
  std::vector<Rail> rails;
  std::vector<RailPath> paths;
  std::function<void(const RailPath& path, const std::string& why)> lost_path;
  // How long a path may leave bytes unacknowledged before check() reports it as cut. 0: check() does nothing.
  std::int64_t silence_ns = 0;
  // The next three options apply to senders; the receiver's values are ignored. Between ranks of one host MSG_ZEROCOPY
  // is never used, because the kernel copies there anyway.
  int sockets = 1;                                    // number of sockets; large messages are striped over them
  std::size_t stripe_bytes = std::size_t{128} << 10;  // length of a stripe
  std::size_t zero_copy_from = 0;  // messages of at least this many bytes are sent with MSG_ZEROCOPY; 0: none are
};

// Registered bytes; destroying it deregisters them. It must outlive the requests that use it, which end with the
// connection at the latest. It may outlive the connection. The bytes must outlive it.
class NetMemory : base::NoCopy {
 public:
  explicit NetMemory(std::span<std::byte> bytes) : bytes_(bytes) {}
  virtual ~NetMemory() = default;
  std::span<std::byte> bytes() const { return bytes_; }
  bool contains(const std::byte* data, std::size_t bytes) const {
    // No sum of an address and a length: a length that cannot be, for example from a negative int, would overflow it.
    return data >= bytes_.data() && bytes <= bytes_.size() &&
           static_cast<std::size_t>(data - bytes_.data()) <= bytes_.size() - bytes;
  }

 private:
  std::span<std::byte> bytes_;
};

struct NetPart {
  std::byte* data = nullptr;
  std::size_t bytes = 0;  // for a receive: the maximum length of the message
  int tag = 0;
  const NetMemory* memory = nullptr;  // the registered memory that contains the bytes
};

class NetConnection;

// The connection owns the request. It reuses the request as soon as test() or wait() has reported that it is done. What
// a message of one part needs is in the first cache line: system calls evict the lines from the first-level cache.
struct alignas(64) NetRequest {
  enum class Kind : std::uint8_t { kSend, kReceive, kFlush };
  Kind kind = Kind::kSend;
  bool done = false;
  std::uint32_t index = 0;              // among the requests of its connection
  NetConnection* connection = nullptr;  // the owner
  NetRequest* next_free = nullptr;      // in the connection's list of requests that are not in use
  std::size_t count = 0;                // number of parts that are used
  std::array<NetPart, kNetMaxParts> parts;
  std::array<std::size_t, kNetMaxParts> moved{};  // received bytes of each part
  std::string text() const;                       // "a receive of at most 100 bytes with tag 3"
};

struct NetPeer {
  int rank = 0;  // -1: unknown
  std::string address;
  int channel = 0;
  std::string text() const;  // "rank 3 at 192.0.2.1:80"
};

class NetConnection : base::NoCopy {
  // First, so that they lie in one cache line with the pointer to the virtual functions.
  NetRequest* free_ = nullptr;
  std::unique_ptr<const Error> error_;

 public:
  virtual ~NetConnection() = default;
  NetConnection();

  // The default serves networks for which the kernel copies the bytes.
  virtual std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes);
  // Bytes of a GPU, for networks whose adapters read and write them directly. `dma_buf`: the descriptor of a dma-buf
  // that holds the bytes at `offset`; -1: none. The default throws kUnsupported.
  virtual std::unique_ptr<NetMemory> register_gpu_memory(std::span<std::byte> bytes, int dma_buf, std::uint64_t offset);
  // True: the network keeps the addresses of registered memory, so a registration must end before its memory is freed.
  virtual bool keeps_addresses() const { return false; }
  virtual bool progress() = 0;  // sends or receives as many bytes as possible without blocking; false: no bytes moved
  // Appends the descriptors to poll: when one of them is ready, progress() can move bytes. Returns how many nanoseconds
  // a thread may sleep in poll, at most kNetMaxSleepNs. Then it must call progress() even if no descriptor is ready,
  // because some networks have none. 0: do not sleep.
  virtual std::int64_t watch(std::vector<pollfd>& all) const = 0;
  // Throws if the network between the ranks is cut. Called once a second or so, also while no request is under way.
  virtual void check() {}

  // True: the request is done and must not be used any more. For a receive, test() stores in `moved` the number of
  // bytes of each part.
  bool test(NetRequest* request, std::span<std::size_t> moved = {}) {
    if (!request->done) {
      progress();
      if (!request->done) return false;
    }
    for (std::size_t i = 0; i < std::min(moved.size(), request->count); ++i) moved[i] = request->moved[i];
    request->next_free = free_;
    free_ = request;
    return true;
  }
  // Spins, then yields, then sleeps in poll. Its errors name the peer's rank.
  void wait(NetRequest* request, const Deadline& deadline, std::span<std::size_t> moved = {});

  const NetPeer& peer() const { return peer_; }

 protected:
  void require_no_error() const {  // throws the error, if there was one
    if (error_) throw_error();
  }
  [[noreturn]] void fail(Error error);  // stores the error for later calls and throws it
  template <class... Values>
  [[noreturn]] void fail(ErrorCode code, fmt::format_string<Values...> text, Values&&... values) {
    fail(base::make_error(code, {}, text, std::forward<Values>(values)...));
  }
  void check_part(const NetPart& part) const {
    if (part.bytes > 0 && !(part.memory && part.memory->contains(part.data, part.bytes))) refuse(part);
  }
  NetRequest* take_request(NetRequest::Kind kind) {  // null: all requests are in use
    NetRequest* const request = free_;
    if (!request) return nullptr;
    free_ = request->next_free;
    request->kind = kind;
    request->done = false;
    request->count = 0;
    return request;
  }

  NetPeer peer_;
  std::vector<NetRequest> requests_ = std::vector<NetRequest>(kNetMaxRequests);

 private:
  [[noreturn]] void throw_error() const;
  [[noreturn]] void refuse(const NetPart& part) const;
};

class NetSender : public NetConnection {
 public:
  // Null: all requests are in use; call progress() and try again. A send is done when the caller may overwrite the
  // bytes. The peer may not have received them yet. `more`: another send follows at once, so that one system call can
  // send both.
  virtual NetRequest* isend(const NetPart& part, bool more) = 0;
  NetRequest* isend(const NetPart& part) { return isend(part, false); }

 protected:
  NetRequest* take_send(const NetPart& part) {  // null: all requests are in use
    require_no_error();
    check_part(part);
    NetRequest* const request = take_request(NetRequest::Kind::kSend);
    if (!request) return nullptr;
    request->count = 1;
    request->parts[0] = part;
    return request;
  }
};

class NetReceiver : public NetConnection {
 public:
  // A message is matched with the oldest part that has its tag and no message yet. Null: all requests are in use.
  virtual NetRequest* irecv(std::span<const NetPart> parts) = 0;
  // The request is done when a device that reads the memory, for example a GPU, sees the received bytes of these parts.
  // Null: as for irecv. The default serves networks whose bytes the CPU sees when the receive is done.
  virtual NetRequest* flush(std::span<const NetPart> parts);

 protected:
  NetRequest* take_receive(std::span<const NetPart> parts) {  // null: all requests are in use
    require_no_error();
    if (parts.empty() || parts.size() > kNetMaxParts) refuse_count(parts.size());
    for (const NetPart& part : parts) check_part(part);
    NetRequest* const request = take_request(NetRequest::Kind::kReceive);
    if (!request) return nullptr;
    request->count = parts.size();
    std::copy(parts.begin(), parts.end(), request->parts.begin());
    return request;
  }

 private:
  [[noreturn]] static void refuse_count(std::size_t parts);
};

class NetListener {
 public:
  virtual ~NetListener() = default;
  // Connections that do not authenticate with the key are closed. With a null deadline accept() does not wait: it
  // returns null if no rank has connected.
  virtual std::unique_ptr<NetReceiver> accept(const Deadline* deadline) = 0;
  std::unique_ptr<NetReceiver> accept(const Deadline& deadline) { return accept(&deadline); }
  const NetHandle& handle() const { return handle_; }
  const std::vector<Rail>& rails() const { return rails_; }  // those of the options, with ports; empty: not supported

 protected:
  NetHandle handle_{};
  std::vector<Rail> rails_;
};

class Net {
 public:
  virtual ~Net() = default;
  virtual std::unique_ptr<NetListener> listen(const NetOptions& options) const = 0;
  // Returns without waiting until the peer calls accept().
  virtual std::unique_ptr<NetSender> connect(const NetHandle& handle, const NetOptions& options,
                                             const Deadline& deadline) const = 0;
};

const Net& net_tcp();

}  // namespace slip::transport
