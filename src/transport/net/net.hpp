// The seam of networks, cut as NCCL's plug-ins are: lines that carry messages one way, from a sender to a receiver,
// into memory that was registered. Nine virtual functions, none of them optional; what is closed or deregistered is
// destroyed. TCP is the only row of the table yet.
//
// A line has no thread and never blocks: isend and irecv hand out a request from a fixed pool, and bytes move while
// somebody calls progress(), test() or wait(). One thread at a time may use a line. The first error sticks: every later
// call throws it, with the rank and the address of the other end.
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
using NetHandle =
    std::array<std::byte, kNetHandleBytes>;  // where a listener is: plain data, for the Bootstrap to carry

inline constexpr std::size_t kNetMaxParts = 8;       // messages that one irecv takes
inline constexpr int kNetMaxSockets = 16;            // of a line
inline constexpr std::size_t kNetMaxRequests = 256;  // of a line at the same time

struct NetOptions {
  int rank = 0;           // of this end: errors of the other end name it
  int channel = 0;        // of a line: the other end learns it
  Secret key{};           // both ends have the same, or else they take each other for strangers
  std::string host;       // to listen at; without one it is chosen by
  std::string interface;  // a rule as in SLIP_SOCKET_IFNAME, which is asked when this is empty
  // The sender decides how a line is made. Within a host MSG_ZEROCOPY is never used: the kernel copies there all the
  // same.
  int sockets = 1;                                    // that share large messages
  std::size_t stripe_bytes = std::size_t{128} << 10;  // that a socket gets in turn
  std::size_t zero_copy_from = 0;  // bytes of the smallest message sent so; 0: none, and within a host
};

// Registered bytes; destroying it deregisters them. It must outlive the requests that use it, and not the line.
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
  const NetMemory* memory = nullptr;  // that the bytes lie in
};

// Belongs to its line, and is used again as soon as test() or wait() said that it is done.
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

class NetLine {
 public:
  virtual ~NetLine() = default;
  NetLine() = default;
  NetLine(const NetLine&) = delete;
  NetLine& operator=(const NetLine&) = delete;

  virtual std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) = 0;
  virtual bool progress() = 0;                             // moves what goes now; false: nothing went
  virtual void watch(std::vector<pollfd>& all) const = 0;  // adds what can make progress() move something

  // True: it is done, and the request is gone. `moved` gets the bytes of each part of a receive.
  bool test(NetRequest* request, std::span<std::size_t> moved = {});
  // Spins, then gives way, then sleeps in poll. The error says who did not come.
  void wait(NetRequest* request, const Deadline& deadline, std::span<std::size_t> moved = {});

  const NetPeer& peer() const { return peer_; }

 protected:
  void require_whole() const;           // throws the error, if there was one
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

class NetSender : public NetLine {
 public:
  // Null: all requests are in use, make progress and try again. A send is done when its bytes may be changed: the
  // network has them, which does not say that they were received.
  // `more`: another one follows at once, and both may leave together.
  virtual NetRequest* isend(const NetPart& part, bool more) = 0;
  NetRequest* isend(const NetPart& part) { return isend(part, false); }
};

class NetReceiver : public NetLine {
 public:
  // A message goes to the oldest part with its tag that has none yet. Null as above.
  virtual NetRequest* irecv(std::span<const NetPart> parts) = 0;
  // Done when what these parts received is there for whoever reads the memory, a GPU, say.
  virtual NetRequest* flush(std::span<const NetPart> parts) = 0;
};

class NetListener {
 public:
  virtual ~NetListener() = default;
  // Strangers are turned away. Without a deadline it does not wait, and is null if nobody has come.
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
const Net& find_net(std::string_view name);  // by its row in the table; the error lists them

}  // namespace slip
