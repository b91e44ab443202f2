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
  EmptyBuffer empty_buffer(const NetPeer& peer);
  void deregister(PluginMemory& memory);
  void close();  // deregisters all memory first, and releases the context
  // True in a child of fork(). The connection belongs to the parent: closing it in the child would end the parent's.
  bool is_inherited() const { return process_ != ::getpid(); }

 private:
  [[noreturn]] void refuse(const NetPart& part, const NetPeer& peer) const;
  void* register_memory(const NetMemory* memory, const NetPeer& peer);
  void* register_bytes(std::span<std::byte> bytes, const std::optional<PluginMemory::Gpu>& gpu, const NetPeer& peer);

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
  void look();
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
  bool receive(std::span<std::byte> bytes);
  bool send(std::span<const std::byte> bytes);

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
