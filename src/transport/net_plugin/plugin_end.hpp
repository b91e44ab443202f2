// make_plugin_sender() and make_plugin_receiver(): the two ends of a connection that a plug-in carries. PluginComm: the
// plug-in's connection of an end, and the memory that is registered with it. PluginControl: the control socket of an
// end.
//
// progress() makes the connection. First both ends exchange a PluginHello and a PluginAnswer over the control socket.
// Then they call the plug-in's connect() and accept() until these return a connection. Until then messages wait in a
// queue.
//
// A plug-in accepts kMaxInFlight requests per connection and messages up to a maximum length. Further requests wait in
// the queue. A longer message is sent in pieces. After a piece of exactly the maximum length another piece follows,
// which may be empty.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "slip/error.hpp"
#include "transport/net/net.hpp"
#include "transport/net_plugin/plugin.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

class PluginComm;

// Memory that is registered with the plug-in when a message first uses it: before that, the plug-in's connection may
// not exist.
class PluginMemory final : public NetMemory {
 public:
  struct Gpu {
    int dma_buf = -1;          // -1: none
    std::uint64_t offset = 0;  // of the memory in the dma-buf
  };
  PluginMemory(std::span<std::byte> bytes, std::shared_ptr<PluginComm> comm, std::optional<Gpu> gpu)
      : NetMemory(bytes), comm_(std::move(comm)), gpu_(gpu) {}
  ~PluginMemory() override;
  bool on_gpu() const { return gpu_.has_value(); }

 private:
  friend class PluginComm;
  const std::shared_ptr<PluginComm> comm_;  // may be closed before the memory is destroyed
  void* handle_ = nullptr;                  // of the plug-in; valid if registered_
  bool registered_ = false;
  const std::optional<Gpu> gpu_;
};

class PluginComm : base::NoCopy {
 public:
  enum class Side { kSend, kReceive };
  PluginComm(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context, int device, Side side)
      : plugin_(plugin), context_(std::move(context)), device_(device), side_(side) {}
  ~PluginComm() { close(); }

  const NetPlugin& plugin() const { return plugin_; }
  const PluginCalls& calls() const { return plugin_.calls(); }
  void* context() const { return context_ ? context_->get() : nullptr; }
  int device() const { return device_; }
  const PluginDevice& properties() const { return plugin_.devices()[static_cast<std::size_t>(device_)]; }
  void* get() const { return comm_; }  // null: not connected yet
  void set(void* comm) { comm_ = comm; }

  // Throws if the memory was registered with another connection.
  void require_own(const NetPart& part, const NetPeer& peer) const {
    if (part.bytes > 0 && static_cast<const PluginMemory*>(part.memory)->comm_.get() != this) refuse(part, peer);
  }
  // The plug-in's handle of this memory. The first call registers the memory.
  void* handle_of(const NetMemory* memory, const NetPeer& peer) {
    const auto* const own = static_cast<const PluginMemory*>(memory);
    return own->registered_ ? own->handle_ : register_memory(memory, peer);
  }
  // Registered memory for messages of 0 bytes: plug-ins read the memory handle in any case.
  struct EmptyBuffer {
    std::span<std::byte> bytes;
    void* handle = nullptr;
  };
  EmptyBuffer empty_buffer(const NetPeer& peer) {
    if (!empty_registered_) {
      empty_handle_ = register_bytes(empty_bytes_, std::nullopt, peer);
      empty_registered_ = true;
    }
    return {empty_bytes_, empty_handle_};
  }
  void deregister(PluginMemory& memory) {
    if (!memory.registered_) return;
    memory.registered_ = false;
    std::erase(registered_, &memory);
    if (is_inherited()) return;
    static_cast<void>(calls().dereg_mr(comm_, memory.handle_));  // nothing can be done if it fails
  }
  // Deregisters all memory first, and releases the context.
  void close() {
    if (comm_ && !is_inherited()) {
      while (!registered_.empty()) deregister(*registered_.back());
      if (std::exchange(empty_registered_, false)) static_cast<void>(calls().dereg_mr(comm_, empty_handle_));
      static_cast<void>(side_ == Side::kSend ? calls().close_send(comm_) : calls().close_recv(comm_));
    }
    comm_ = nullptr;
    context_ = nullptr;
  }
  // True in a child of fork(). The connection belongs to the parent: closing it in the child would end the parent's.
  bool is_inherited() const { return process_ != ::getpid(); }

 private:
  [[noreturn]] void refuse(const NetPart& part, const NetPeer& peer) const {
    base::fail(ErrorCode::kInvalidValue, {},
               "{}: the memory of {} bytes with tag {} was registered with another connection", peer.text(), part.bytes,
               part.tag);
  }
  void* register_memory(const NetMemory* memory, const NetPeer& peer) {
    // Callers pass NetMemory as const. The registration with the plug-in is not visible to them, so it may change here.
    auto* const own = const_cast<PluginMemory*>(static_cast<const PluginMemory*>(memory));
    own->handle_ = register_bytes(own->bytes(), own->gpu_, peer);
    registered_.push_back(own);
    own->registered_ = true;
    return own->handle_;
  }
  void* register_bytes(std::span<std::byte> bytes, const std::optional<PluginMemory::Gpu>& gpu, const NetPeer& peer) {
    void* handle = nullptr;
    const bool dma_buf = gpu && gpu->dma_buf >= 0;
    const net_result result =
        dma_buf ? calls().reg_mr_dma_buf(comm_, bytes.data(), bytes.size(), NET_PTR_CUDA, gpu->offset, gpu->dma_buf,
                                         &handle)
                : calls().reg_mr(comm_, bytes.data(), bytes.size(), gpu ? NET_PTR_CUDA : NET_PTR_HOST, &handle);
    if (result != NET_SUCCESS)
      throw plugin_.error(fmt::format("{} of {} bytes", dma_buf ? "regMrDmaBuf" : "regMr", bytes.size()), result,
                          peer.text());
    return handle;
  }

  const NetPlugin& plugin_;
  const pid_t process_ = ::getpid();
  std::shared_ptr<const PluginContext> context_;  // null: closed, or the plug-in has no contexts
  const int device_;
  const Side side_;
  void* comm_ = nullptr;
  std::vector<PluginMemory*> registered_;
  std::array<std::byte, 64> empty_bytes_{};
  void* empty_handle_ = nullptr;
  bool empty_registered_ = false;
};

inline PluginMemory::~PluginMemory() { comm_->deregister(*this); }

// The last message of an end on the control socket. kGoodbye: the end closes the connection. kFailure: it has failed.
// Ranks send it as bytes.
struct PluginNotice {
  static constexpr std::uint32_t kGoodbye = 0x67627965, kFailure = 0x6661696c;
  std::uint32_t mark = 0;
  std::int32_t code = 0;       // of a failure: an ErrorCode
  std::uint64_t messages = 0;  // of a sender's goodbye: messages that it has sent
  char text[496] = {};         // of a failure
};
static_assert(sizeof(PluginNotice) == 512);

// The control socket that belongs to a connection. Over it the receiver sends its address in the plug-in's network.
// Each end also reports its failure or its goodbye there. So this rank notices a lost peer even if the
// plug-in does not report it.
class PluginControl : base::NoCopy {
 public:
  explicit PluginControl(Socket socket) : socket_(std::move(socket)) {}

  // Receives the bytes of `message` that have arrived, without waiting. True: the message is complete. If the peer has
  // closed the socket, ended() holds afterwards.
  template <class Message>
  bool receive(Message& message) {
    return receive(std::as_writable_bytes(std::span(&message, 1)));
  }
  // Sends a short message, without waiting. False: it could not be sent.
  template <class Message>
  bool send(const Message& message) {
    return send(std::as_bytes(std::span(&message, 1)));
  }

  // Looks for a notice or the end of the connection, without waiting.
  void look() {
    if (ended()) return;
    // After the notice, only the end can follow.
    std::byte beyond{};
    auto room = notice() ? std::span(&beyond, 1) : std::as_writable_bytes(std::span(&notice_, 1)).subspan(got_);
    const Socket::Moved moved = socket_.try_recv(room);
    if (!notice()) got_ += moved.bytes;
    if (!moved.ended) return;
    ended_ns_ = base::now_ns();
    error_ = moved.error;
  }
  // Whether look() should be called. `ticks`: now. True at most once in kLookUs microseconds, because a system call for
  // each test() would take longer than the test.
  bool is_due(std::uint64_t ticks) {
    if (static_cast<double>(ticks - looked_ticks_) < kLookUs * base::ticks_per_us()) return false;
    looked_ticks_ = ticks;
    return true;
  }
  bool ended() const { return ended_ns_ != 0; }
  // When look() or receive() noticed the end of the connection, in now_ns(); 0: it has not ended.
  std::int64_t ended_ns() const { return ended_ns_; }
  const PluginNotice* notice() const { return got_ == sizeof(notice_) ? &notice_ : nullptr; }
  // An error of the plug-in that is not thrown yet, because the peer may still report its cause. Null: none.
  const Error* deferred() const { return deferred_ ? &deferred_->error : nullptr; }
  void defer(const Error& error) { deferred_.emplace(Deferred{error, base::now_ns()}); }
  // After defer(): whether the peer has sent a notice or ended the connection, or this time has passed. Does not wait.
  bool must_throw(std::int64_t limit_ns) {
    look();
    return notice() || ended() || base::now_ns() - deferred_->since_ns >= limit_ns;
  }
  int descriptor() const { return socket_.descriptor(); }
  std::string end_text() const { return reason_text(error_); }

 private:
  static constexpr double kLookUs = 1000;
  bool receive(std::span<std::byte> bytes) {
    const Socket::Moved moved = socket_.try_recv(bytes.subspan(received_));
    received_ += moved.bytes;
    if (received_ == bytes.size()) {
      received_ = 0;
      return true;
    }
    if (moved.ended) {
      ended_ns_ = base::now_ns();
      error_ = moved.error;
    }
    return false;
  }
  bool send(std::span<const std::byte> bytes) {
    // The socket's buffer holds only a few such short messages, so the kernel accepts each of them completely.
    return socket_.valid() && !ended() && socket_.try_send(bytes).bytes == bytes.size();
  }

  Socket socket_;
  std::uint64_t looked_ticks_ = base::ticks();
  std::size_t received_ = 0;  // bytes of the message that receive() reads
  PluginNotice notice_;
  std::size_t got_ = 0;  // received bytes of notice_
  std::int64_t ended_ns_ = 0;
  int error_ = 0;
  struct Deferred {
    Error error;
    std::int64_t since_ns = 0;
  };
  std::optional<Deferred> deferred_;
};

// The two ends of a connection. `context`: of the rank, null if the plug-in has no contexts; `control`: the socket of
// the greeting.
std::unique_ptr<NetSender> make_plugin_sender(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context,
                                              NetPeer peer, Socket control);
std::unique_ptr<NetReceiver> make_plugin_receiver(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context,
                                                  NetPeer peer, Socket control);

}  // namespace slip::transport
