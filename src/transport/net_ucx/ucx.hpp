// The network transport over UCX: both ends of a connection. The rules for callers are in net.hpp. Messages are tagged
// messages of UCX, which sends large ones by rendezvous.
//
// A connection begins with a TCP socket and a greeting (tcp_greeting.hpp). Over this socket the receiver sends the
// address of its worker; then the sender makes its endpoint. The socket stays open: over it the receiver reports a
// message that is too large, and the sender sends a goodbye message. If the socket ends without a goodbye, the peer is
// gone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "transport/net/net.hpp"
#include "transport/net_ucx/ucx_worker.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

// The receiver's first message over the socket. The address of its worker follows.
struct UcxAnswer {
  static constexpr std::uint32_t kMark = 0x75637831;  // "ucx1"
  std::uint32_t mark = kMark;
  std::uint32_t number = 0;  // of the connection: the upper half of the tags of its messages
  std::uint32_t address_bytes = 0;
  std::uint32_t reserved = 0;
};

// The receiver sends this over the socket if a message is larger than the receive that was posted for it.
struct UcxTooLarge {
  static constexpr std::uint32_t kMark = 0x75637862;  // "ucxb"
  std::uint32_t mark = kMark;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0, room = 0;  // of the message, and of the receive
};

// The last message over the socket of a sender that closes the connection cleanly.
struct UcxGoodbye {
  static constexpr std::uint32_t kMark = 0x75637867;  // "ucxg"
  std::uint32_t mark = kMark;
  std::uint32_t reserved = 0;
  std::uint64_t messages = 0;  // sent over the connection
};

// UCX's tag of a message.
inline ucp_tag_t ucx_tag(std::uint32_t number, int tag) {
  return std::uint64_t{number} << 32 | static_cast<std::uint32_t>(tag);
}

class UcxMemory final : public NetMemory {
 public:
  UcxMemory(const UcxContext& context, std::span<std::byte> bytes);
  ~UcxMemory() override;
  ucp_mem_h handle() const { return handle_; }

 private:
  const UcxContext& context_;
  const pid_t process_;         // in a forked child, the parent's memory must not be deregistered
  ucp_mem_h handle_ = nullptr;  // null: no bytes
};

ucp_request_param_t ucx_params(UcxOperation& operation, const NetPart& part);

// IdleCheck: limits how often an idle connection reads its socket, which costs a system call. The limit is a time, not
// a number of calls: while a message is on its way, a waiting thread makes hundreds of calls that move nothing.
class IdleCheck {
 public:
  // Call it when nothing moved. True: read the socket now.
  bool due() {
    const std::uint64_t now = base::ticks();
    if (static_cast<double>(now - looked_ticks_) < kEveryUs * base::ticks_per_us()) return false;
    looked_ticks_ = now;
    return true;
  }
  void make_due() { looked_ticks_ = 0; }

 private:
  static constexpr double kEveryUs = 200;
  std::uint64_t looked_ticks_ = 0;
};

class UcxSender final : public NetSender {
 public:
  UcxSender(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker);
  ~UcxSender() override;
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override;
  bool keeps_addresses() const override { return true; }
  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool more) override;
  bool progress() override;
  std::int64_t watch(std::vector<pollfd>& all) const override;

 private:
  void send(std::size_t index) SLIP_REQUIRES(ucx_lock);
  bool settle() SLIP_REQUIRES(ucx_lock);
  void finish(const UcxOperation& operation);
  // Not analysed: requires the worker's lock unless there is an endpoint already.
  bool read_socket() SLIP_NO_THREAD_SAFETY_ANALYSIS;
  bool read_answer() SLIP_REQUIRES(ucx_lock);
  void read_refusal(bool ended, int error);
  void connect() SLIP_REQUIRES(ucx_lock);
  void require_worker() SLIP_REQUIRES(ucx_lock);
  [[noreturn]] void fail_lost(ucs_status_t status);

  Socket socket_;
  std::vector<std::byte> unread_;  // bytes that were received over the socket and not used yet
  std::uint32_t number_ = 0;
  std::vector<std::size_t> queued_;  // messages that wait for the endpoint
  std::vector<UcxOperation> operations_ = std::vector<UcxOperation>(kNetMaxRequests);  // by index of the request
  UcxPort port_;               // after the operations: its destructor cancels those that are pending
  std::size_t under_way_ = 0;  // messages that are queued, or not completed by UCX
  std::uint64_t sent_ = 0;     // messages that were passed to UCX
  mutable IdleCheck idle_;
};

class UcxReceiver final : public NetReceiver {
 public:
  UcxReceiver(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker, std::uint32_t number);
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override;
  bool keeps_addresses() const override { return true; }
  NetRequest* irecv(std::span<const NetPart> parts) override;
  bool progress() override;
  std::int64_t watch(std::vector<pollfd>& all) const override;

 private:
  bool settle() SLIP_REQUIRES(ucx_lock);
  void finish_part(const UcxOperation& operation);
  void read_socket();
  void check_end(bool moved);
  void require_worker() SLIP_REQUIRES(ucx_lock);
  [[noreturn]] void fail_too_large(const UcxOperation& operation, const NetPart& part);

  Socket socket_;
  const std::uint32_t number_;
  std::vector<UcxOperation> operations_ = std::vector<UcxOperation>(kNetMaxRequests * kNetMaxParts);
  UcxPort port_;  // after the operations: its destructor cancels those that are pending
  std::array<std::uint8_t, kNetMaxRequests> missing_{};  // by request: parts that have not arrived
  std::size_t unfinished_ = 0;                           // parts of all requests that have not arrived
  std::uint64_t received_ = 0;                           // messages that have arrived
  std::array<std::byte, sizeof(UcxGoodbye)> goodbye_{};
  std::size_t goodbye_bytes_ = 0;
  // After the end of the socket, messages may still arrive over UCX's own connections.
  bool ended_ = false;
  int end_error_ = 0;
  std::int64_t ended_ns_ = 0, moved_ns_ = 0;  // when the socket ended, and when UCX last made progress after that
  mutable IdleCheck idle_;
};

}  // namespace slip::transport
