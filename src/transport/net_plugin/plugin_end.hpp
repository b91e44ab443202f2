// PluginSender and PluginReceiver: the two ends of a connection that a plug-in carries. PluginComm: the plug-in's
// connection of an end, and the memory that is registered with it. PluginControl: the control socket of an end.
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

// The sender's first message on the control socket.
struct PluginHello {
  static constexpr std::uint32_t kMark = 0x706c6731;
  std::uint32_t mark = kMark;
  std::int32_t version = 0;     // of the plug-in's interface
  std::uint64_t max_bytes = 0;  // of one message, at the sender
  char plugin[64] = {};         // the plug-in's name: both ends need the same plug-in
};

// The receiver's answer on the control socket.
struct PluginAnswer {
  static constexpr std::uint32_t kMark = 0x706c6732;
  std::uint32_t mark = kMark;
  std::uint32_t reserved = 0;
  std::uint64_t max_bytes = 0;                       // of one message, at both ends; 0: the receiver has failed
  std::array<std::byte, NET_HANDLE_BYTES> handle{};  // the address of the receiver's listener, as the plug-in made it
};

// One end of a connection. Both ends run this code for each message. So the calls of Self are not virtual, and the
// usual case reads no clock and makes no system call. `Self` is PluginSender or PluginReceiver, and `Base` NetSender or
// NetReceiver. Self has these functions:
//   bool join();   one step towards the connection; the last one calls set_comm(). False: nothing changed.
//   bool start(NetRequest& request);   passes the next piece of a message to the plug-in. False: not possible now.
//   bool test_piece(const Piece& piece);   asks the plug-in's test() whether the piece is done. False: it is not.
//   bool poll_flushes();   False: no flush has ended.
//   bool is_flushing() const;
template <class Self, class Base>
class PluginEnd : public Base {
 public:
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override;
  std::unique_ptr<NetMemory> register_gpu_memory(std::span<std::byte> bytes, int dma_buf,
                                                 std::uint64_t offset) override;
  bool keeps_addresses() const override { return true; }
  bool progress() override;
  std::int64_t watch(std::vector<pollfd>& all) const override;

 protected:
  static constexpr std::size_t kMaxInFlight = NET_MAX_REQUESTS;
  // A flush is a request of the connection, too. So a connection that may flush starts fewer receives: otherwise
  // receives whose messages come late could leave no request for a flush.
  static constexpr std::size_t kMaxFlushes = 8;
  // A request of the plug-in: a message, or a piece of one.
  struct Piece {
    NetRequest* request = nullptr;
    void* handle = nullptr;
    std::size_t bytes = 0;  // of a send; or the room of the first part of a receive
    bool last = true;       // used by the sender: no further piece of the message follows
  };

  PluginEnd(std::shared_ptr<PluginComm> comm, NetPeer peer, Socket control);

  NetRequest* enqueue(NetRequest* request);
  void push_piece(const Piece& piece) { pieces_[pieces_started_++ % kMaxInFlight] = piece; }
  void set_started() {  // the message of start() needs no further piece
    ++begun_;
    offset_ = 0;
  }
  void finish(NetRequest& request) {
    request.done = true;
    ++finished_;
  }
  // Ends the connection with this error or its cause: notifies the peer and throws. Later calls throw the same error.
  [[noreturn]] void give_up(const Error& error);
  void require(net_result result, const char* function) const {
    if (result != NET_SUCCESS) throw_failure(result, function);
  }
  Error lost() const;  // the error of a peer that is gone
  void close();        // for destructors
  void set_comm(void* comm) {
    comm_->set(comm);
    plugin_comm_ = comm;
  }

  // Each message uses the members from here to pieces_.
  const std::shared_ptr<PluginComm> comm_;
  const PluginCalls& calls_;
  void* plugin_comm_ = nullptr;  // the plug-in's connection; null: there is none yet
  struct Limits {
    std::uint64_t bytes;          // of one message of the plug-in
    const std::size_t in_flight;  // pieces at a time
  } limits_;
  std::uint64_t offset_ = 0;  // bytes of the message at begun_ that are in earlier pieces

 private:
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }
  bool step();
  bool can_start() const { return plugin_comm_ && pieces_started_ - pieces_done_ < limits_.in_flight; }
  void start_queued();
  void look_at_control();
  [[noreturn]] void throw_failure(net_result result, const char* function) const;
  std::int64_t idle_ns() const;
  bool has_unfinished() const { return finished_ < queued_; }
  Error with_cause(const Error& error);

  // Counts of messages: queued_ by the caller; begun_: all pieces were passed to the plug-in; finished_: done. Messages
  // finish in order.
  std::uint64_t queued_ = 0, begun_ = 0, finished_ = 0;
  // The number of pieces that were passed to the plug-in, and that are done.
  std::uint64_t pieces_started_ = 0, pieces_done_ = 0;
  // base::ticks() at the first progress() that moved nothing; 0: the last one moved something. So no clock is read
  // while messages move.
  std::uint64_t idle_ticks_ = 0;
  std::array<Piece, kMaxInFlight> pieces_{};
  std::array<NetRequest*, kNetMaxRequests> queue_{};  // messages from begun_ on

 protected:
  bool greeted_ = false;  // the peer's first message on the control socket has arrived
  PluginControl control_;
};

class PluginSender final : public PluginEnd<PluginSender, NetSender> {
 public:
  PluginSender(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context, NetPeer peer, Socket control);
  ~PluginSender() override { close(); }
  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool more) override;

 private:
  friend class PluginEnd<PluginSender, NetSender>;
  bool join();
  bool start(NetRequest& request);
  bool test_piece(const Piece& piece);
  static bool poll_flushes() { return false; }
  static bool is_flushing() { return false; }

  PluginAnswer answer_;  // kept, because plug-ins store the state of connect() in its handle
};

class PluginReceiver final : public PluginEnd<PluginReceiver, NetReceiver> {
 public:
  PluginReceiver(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context, NetPeer peer, Socket control);
  ~PluginReceiver() override;
  NetRequest* irecv(std::span<const NetPart> parts) override;
  NetRequest* flush(std::span<const NetPart> parts) override;

 private:
  friend class PluginEnd<PluginReceiver, NetReceiver>;
  bool join();
  bool start(NetRequest& request);
  bool test_piece(const Piece& piece);
  [[noreturn]] void fail_part(const NetPart& part) const;
  [[noreturn]] void fail_length(const NetPart& part, std::size_t room, int bytes) const;
  bool poll_flushes();
  bool is_flushing() const { return !flushes_.empty(); }
  void begin_listening();

  std::vector<Piece> flushes_;
  bool awaits_piece_ = false;  // the length of the piece in flight shows whether its message has another piece
  PluginHello hello_;
  void* listener_ = nullptr;
};

}  // namespace slip::transport
