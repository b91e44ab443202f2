// PluginComm: one end of a plug-in's connection, and the memory that is registered with it. PluginControl: the control
// socket that belongs to the connection. Over this socket the receiver sends its address in the plug-in's network. Each
// end also reports its failure or its goodbye there. So a lost rank is noticed even if the plug-in does not report it.
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

// Registered with the plug-in when it is first used, because the connection may not exist before.
class PluginMemory final : public NetMemory {
 public:
  struct Gpu {
    int dma_buf = -1;  // -1: none
    std::uint64_t offset = 0;
  };
  PluginMemory(std::span<std::byte> bytes, std::shared_ptr<PluginComm> comm, std::optional<Gpu> gpu)
      : NetMemory(bytes), comm_(std::move(comm)), gpu_(gpu) {}
  ~PluginMemory() override;
  bool on_gpu() const { return gpu_.has_value(); }

 private:
  friend class PluginComm;
  const std::shared_ptr<PluginComm> comm_;  // may be closed before the memory is destroyed
  void* handle_ = nullptr;                  // the plug-in's
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
  // The plug-in's handle of registered memory.
  void* handle_of(const NetMemory* memory, const NetPeer& peer) {
    const auto* const own = static_cast<const PluginMemory*>(memory);
    return own->registered_ ? own->handle_ : register_memory(memory, peer);
  }
  // Registered bytes for messages without bytes: plug-ins read the memory handle in any case.
  struct Empty {
    std::span<std::byte> bytes;
    void* handle = nullptr;
  };
  Empty empty(const NetPeer& peer);
  void deregister(PluginMemory& memory);
  void close();  // deregisters all memory first, and gives up the context
  // In a child of fork() the connection belongs to the parent: closing it here would end it there, too.
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

// The last message of an end on the control socket: it closes the connection, or it has failed. Ranks send it as bytes.
struct PluginNotice {
  static constexpr std::uint32_t kGoodbye = 0x67627965, kFailure = 0x6661696c;
  std::uint32_t mark = 0;
  std::int32_t code = 0;       // of a failure: a ErrorCode
  std::uint64_t messages = 0;  // of a sender's goodbye: messages that it has sent
  char text[496] = {};         // of a failure
};
static_assert(sizeof(PluginNotice) == 512);

class PluginControl : base::NoCopy {
 public:
  explicit PluginControl(Socket socket) : socket_(std::move(socket)) {}

  // Receives the bytes of `message`, without waiting. True: they are complete. If the peer has closed the socket,
  // ended() holds afterwards.
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
  // `ticks`: now. True once in kLookUs: a system call for each test() would take longer than the test.
  bool is_due(std::uint64_t ticks) {
    if (static_cast<double>(ticks - looked_ticks_) < kLookUs * base::ticks_per_us()) return false;
    looked_ticks_ = ticks;
    return true;
  }
  bool ended() const { return ended_ns_ != 0; }
  std::int64_t ended_ns() const { return ended_ns_; }  // when it was noticed; 0: it has not ended
  const PluginNotice* notice() const { return got_ == sizeof(notice_) ? &notice_ : nullptr; }
  // An error of the plug-in, kept until the peer may have reported its cause. Null: none.
  const Error* kept() const { return kept_ ? &kept_->error : nullptr; }
  void keep(const Error& error) { kept_.emplace(Kept{error, base::now_ns()}); }
  // After keep(): whether the peer has reported the cause or ended, or this time has passed. Does not wait.
  bool is_cause_known(std::int64_t limit_ns) {
    look();
    return notice() || ended() || base::now_ns() - kept_->since_ns >= limit_ns;
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
  std::size_t got_ = 0;  // bytes of notice_
  std::int64_t ended_ns_ = 0;
  int error_ = 0;
  struct Kept {
    Error error;
    std::int64_t since_ns = 0;
  };
  std::optional<Kept> kept_;
};

}  // namespace slip::transport
