#include "transport/net_plugin/plugin_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"

namespace slip::transport {
namespace {

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

// A plug-in has no descriptor to poll. So a waiting thread sleeps for 1/8 of the time that it has waited already,
// within these limits: the wait becomes at most 1/8 longer, and a long wait takes no more than a few per mille of a
// core.
constexpr std::int64_t kSleepShare = 8, kMinSleepNs = 20'000, kMaxSleepNs = 1'000'000;
// After the peer's goodbye message, or after the end of the control socket, earlier messages may still arrive. The peer
// counts as lost if no message arrives for this time. kAnnouncedNs: after a goodbye message, which has the number of
// messages. kLostNs: after an end without a goodbye message.
constexpr std::int64_t kAnnouncedNs = 10'000'000'000, kLostNs = 500'000'000;
// The same for a sender whose receiver sent a goodbye message: the plug-in may still report that sends are complete.
constexpr std::int64_t kUnwantedNs = 100'000'000;
// If the plug-in fails because the peer is gone, the control connection also ends within this time.
constexpr std::int64_t kCauseNs = 100'000'000;

// Whether the plug-in's error may only follow from another one: the peer has failed, or is gone.
bool may_be_consequence(const Error& error) {
  return error.code() == ErrorCode::kIo || error.code() == ErrorCode::kRankLost;
}

template <std::size_t Bytes>
void copy_text(char (&to)[Bytes], std::string_view text) {
  text.copy(to, Bytes - 1);  // the rest stays zero
}

PluginNotice failure_notice(const Error& error) {
  PluginNotice notice;
  notice.mark = PluginNotice::kFailure;
  notice.code = static_cast<std::int32_t>(error.code());
  copy_text(notice.text, base::bare_text(error));
  return notice;
}

template <std::size_t Bytes>
std::string text_of(const char (&from)[Bytes]) {
  return base::single_line_text(std::string_view(from, ::strnlen(from, Bytes)));
}

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
  std::unique_ptr<NetMemory> register_memory(std::span<std::byte> bytes) override {
    return std::make_unique<PluginMemory>(bytes, comm_, std::nullopt);
  }
  std::unique_ptr<NetMemory> register_gpu_memory(std::span<std::byte> bytes, int dma_buf,
                                                 std::uint64_t offset) override {
    const PluginDevice& device = comm_->properties();
    if (!device.takes_gpu_memory || (dma_buf >= 0 && !device.takes_dma_buf))
      base::fail(ErrorCode::kUnsupported, {},
                 "{}: device {} of the plug-in {} takes {}: copy the bytes to host memory first", this->peer_.text(),
                 device.name, comm_->plugin().text(), device.takes_gpu_memory ? "no dma-buf" : "no GPU memory");
    return std::make_unique<PluginMemory>(bytes, comm_, PluginMemory::Gpu{dma_buf, offset});
  }
  bool keeps_addresses() const override { return true; }

  bool progress() override {
    this->require_no_error();
    try {
      if (!control_.deferred()) return step();
    } catch (const Error& error) {
      if (!greeted_ || !may_be_consequence(error)) give_up(error);
      control_.defer(error);
      idle_ticks_ = base::ticks();  // watch() asks for short sleeps at first
    }
    // This thread does not wait for the cause: it may be the proxy thread, which also drives other connections.
    if (control_.must_throw(kCauseNs)) give_up(*control_.deferred());
    return false;
  }

  std::int64_t watch(std::vector<pollfd>& all) const override {
    if (!control_.ended()) all.push_back({control_.descriptor(), POLLIN, 0});
    if (!greeted_ || !(has_unfinished() || self().is_flushing())) return kNetMaxSleepNs;  // the control socket suffices
    return std::clamp(idle_ns() / kSleepShare, kMinSleepNs, kMaxSleepNs);
  }

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

  PluginEnd(std::shared_ptr<PluginComm> comm, NetPeer peer, Socket control)
      : comm_(std::move(comm)),
        calls_(comm_->calls()),
        limits_{comm_->properties().max_bytes, std::is_same_v<Base, NetReceiver> && comm_->properties().takes_gpu_memory
                                                   ? kMaxInFlight - kMaxFlushes
                                                   : kMaxInFlight},
        control_(std::move(control)) {
    this->peer_ = std::move(peer);
    this->peer_.address += fmt::format(" by {}", comm_->plugin().file());
  }

  NetRequest* enqueue(NetRequest* request) {
    if (!has_unfinished()) idle_ticks_ = 0;
    const std::uint64_t number = queued_++;
    if (control_.deferred()) return request;  // progress() will throw
    try {
      if (begun_ == number && can_start()) static_cast<void>(self().start(*request));
      if (begun_ <= number) {  // the message waits, or has another piece
        queue_[number % kNetMaxRequests] = request;
        start_queued();
      }
    } catch (const Error& error) {
      give_up(error);
    }
    return request;
  }

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
  [[noreturn]] void give_up(const Error& error) {
    const Error cause = with_cause(error);
    static_cast<void>(control_.send(failure_notice(cause)));
    this->fail(cause);
  }
  void require(net_result result, const char* function) const {
    if (result != NET_SUCCESS) throw_failure(result, function);
  }
  // The error of a peer that is gone.
  Error lost() const {
    return base::make_error(ErrorCode::kRankLost, {},
                            "{} is gone: it closed the connection with {} messages not done{}", this->peer_.text(),
                            queued_ - finished_, control_.end_text());
  }
  // For destructors.
  void close() {
    PluginNotice notice{.mark = PluginNotice::kGoodbye, .messages = finished_};
    if (control_.deferred()) notice = failure_notice(*control_.deferred());
    if (!comm_->is_inherited()) static_cast<void>(control_.send(notice));
    comm_->close();
  }
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

  bool step() {
    bool moved = !plugin_comm_ && self().join();
    if (begun_ < queued_) start_queued();
    while (pieces_done_ < pieces_started_ && self().test_piece(pieces_[pieces_done_ % kMaxInFlight])) {
      ++pieces_done_;
      moved = true;
    }
    if (moved && begun_ < queued_) start_queued();
    if (self().poll_flushes()) moved = true;
    if (moved) {
      idle_ticks_ = 0;
      return true;
    }
    const std::uint64_t now = base::ticks();
    if (idle_ticks_ == 0) idle_ticks_ = now;
    if (control_.is_due(now)) look_at_control();
    return false;
  }

  bool can_start() const { return plugin_comm_ && pieces_started_ - pieces_done_ < limits_.in_flight; }
  void start_queued() {
    while (begun_ < queued_ && can_start()) {
      if (!self().start(*queue_[begun_ % kNetMaxRequests])) return;
    }
  }

  void look_at_control() {
    if (!greeted_) return;  // join() reads the control socket
    control_.look();
    const PluginNotice* const notice = control_.notice();
    if (notice && notice->mark == PluginNotice::kFailure) throw with_cause(lost());
    if (!has_unfinished()) return;
    const bool goodbye = notice && notice->mark == PluginNotice::kGoodbye;
    if (!goodbye && !control_.ended()) return;
    constexpr bool kSends = std::is_same_v<Base, NetSender>;
    if (goodbye && !kSends && finished_ >= notice->messages) throw lost();
    const std::int64_t limit_ns = !goodbye ? kLostNs : kSends ? kUnwantedNs : kAnnouncedNs;
    const std::int64_t since_end_ns = control_.ended() ? base::now_ns() - control_.ended_ns() : limit_ns;
    if (std::min(idle_ns(), since_end_ns) >= limit_ns) throw lost();
  }

  [[noreturn]] void throw_failure(net_result result, const char* function) const {
    throw comm_->plugin().error(function, result, this->peer_.text());
  }

  std::int64_t idle_ns() const {
    if (idle_ticks_ == 0) return 0;
    return static_cast<std::int64_t>(static_cast<double>(base::ticks() - idle_ticks_) / base::ticks_per_us() * 1e3);
  }
  bool has_unfinished() const { return finished_ < queued_; }

  // Returns the error, or its cause if the peer has reported a failure or is gone.
  Error with_cause(const Error& error) {
    if (!may_be_consequence(error)) return error;
    if (greeted_ && !control_.deferred() && !control_.notice() && !control_.ended()) {
      static_cast<void>(wait_for(control_.descriptor(), POLLIN, Deadline{}.within(kCauseNs)));
      control_.look();
    }
    if (const PluginNotice* const notice = control_.notice(); notice && notice->mark == PluginNotice::kFailure) {
      const bool known = notice->code > 0 && notice->code <= static_cast<std::int32_t>(ErrorCode::kAborted);
      return base::make_error(known ? static_cast<ErrorCode>(notice->code) : ErrorCode::kRankLost, {}, "{} gave up: {}",
                              this->peer_.text(), text_of(notice->text));
    }
    if (error.code() == ErrorCode::kRankLost || !control_.ended()) return error;
    return base::make_error(ErrorCode::kRankLost, {}, "{} is gone{}; {}", this->peer_.text(), control_.end_text(),
                            base::bare_text(error));
  }

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
  PluginSender(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context, NetPeer peer, Socket control)
      : PluginEnd(std::make_shared<PluginComm>(plugin, std::move(context), plugin.device_of(peer.channel),
                                               PluginComm::Side::kSend),
                  peer, std::move(control)) {
    PluginHello hello;
    hello.version = plugin.version();
    hello.max_bytes = limits_.bytes;
    copy_text(hello.plugin, plugin.name());
    if (!control_.send(hello)) throw lost();
  }
  ~PluginSender() override { close(); }

  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool) override {
    require_no_error();
    check_part(part);
    comm_->require_own(part, peer_);
    NetRequest* request = take_request(NetRequest::Kind::kSend);
    if (!request) return nullptr;
    request->count = 1;
    request->parts[0] = part;
    return enqueue(request);
  }

 private:
  friend class PluginEnd<PluginSender, NetSender>;
  bool join() {
    if (!greeted_) {
      greeted_ = control_.receive(answer_);
      if (!greeted_ && control_.ended()) throw lost();
      if (!greeted_) return false;
      if (answer_.mark != PluginAnswer::kMark)
        base::fail(
            ErrorCode::kIo, {},
            "{} answered with bytes that are not its address: both ranks must run the same version of Slipstream",
            peer_.text());
      limits_.bytes = std::min(limits_.bytes, answer_.max_bytes);
    }
    if (limits_.bytes == 0) {  // the receiver failed; a notice with the reason follows
      control_.look();
      if (control_.notice() || control_.ended()) throw lost();
      return false;
    }
    void* comm = nullptr;
    require(calls_.connect(calls_, comm_->context(), comm_->device(), answer_.handle.data(), &comm), "connect");
    set_comm(comm);
    return comm != nullptr;
  }

  bool start(NetRequest& request) {
    const NetPart& part = request.parts[0];
    Piece piece{&request, nullptr, std::min<std::size_t>(part.bytes - offset_, limits_.bytes)};
    piece.last = piece.bytes < limits_.bytes;
    std::span<std::byte> bytes(part.data + offset_, piece.bytes);
    void* memory = nullptr;
    if (!bytes.empty()) {
      memory = comm_->handle_of(part.memory, peer_);
    } else {
      const PluginComm::EmptyBuffer empty = comm_->empty_buffer(peer_);
      bytes = empty.bytes.first(0);
      memory = empty.handle;
    }
    require(start_send(calls_, plugin_comm_, bytes, part.tag, memory, &piece.handle), "isend");
    if (!piece.handle) return false;
    push_piece(piece);
    offset_ += piece.bytes;
    if (piece.last) set_started();
    return true;
  }

  bool test_piece(const Piece& piece) {
    int done = 0;
    std::array<int, kNetMaxParts> unused;
    require(calls_.test(piece.handle, &done, unused.data()), "test");
    if (done != 0 && piece.last) finish(*piece.request);
    return done != 0;
  }

  static bool poll_flushes() { return false; }
  static bool is_flushing() { return false; }

  PluginAnswer answer_;  // kept, because plug-ins store the state of connect() in its handle
};

class PluginReceiver final : public PluginEnd<PluginReceiver, NetReceiver> {
 public:
  PluginReceiver(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context, NetPeer peer, Socket control)
      : PluginEnd(std::make_shared<PluginComm>(plugin, std::move(context), plugin.device_of(peer.channel),
                                               PluginComm::Side::kReceive),
                  peer, std::move(control)) {}
  ~PluginReceiver() override {
    if (listener_ && !comm_->is_inherited())
      static_cast<void>(calls_.close_listen(listener_));  // before close(), which releases the context
    close();
  }

  NetRequest* irecv(std::span<const NetPart> parts) override {
    require_no_error();
    const std::size_t max_parts = comm_->properties().max_parts;
    if (parts.empty() || parts.size() > max_parts)
      base::fail(ErrorCode::kInvalidValue, {}, "a receive of {} parts: 1 to {} are possible with the plug-in {}",
                 parts.size(), max_parts, comm_->plugin().text());
    for (const NetPart& part : parts) {
      check_part(part);
      comm_->require_own(part, peer_);
    }
    NetRequest* request = take_request(NetRequest::Kind::kReceive);
    if (!request) return nullptr;
    request->count = parts.size();
    for (std::size_t i = 0; i < parts.size(); ++i) {
      request->parts[i] = parts[i];
      request->moved[i] = 0;
    }
    return enqueue(request);
  }

  // Host memory needs no flush: the plug-in's test() reports a receive as done only when the CPU sees its bytes.
  NetRequest* flush(std::span<const NetPart> parts) override {
    require_no_error();
    std::array<void*, kNetMaxParts> data, memories;
    std::array<int, kNetMaxParts> bytes;
    int count = 0;
    for (const NetPart& part : parts.first(std::min(parts.size(), kNetMaxParts))) {
      check_part(part);
      comm_->require_own(part, peer_);
      if (part.bytes == 0 || !static_cast<const PluginMemory*>(part.memory)->on_gpu() || !plugin_comm_) continue;
      const auto at = static_cast<std::size_t>(count++);
      data[at] = part.data;
      bytes[at] = static_cast<int>(std::min<std::size_t>(part.bytes, limits_.bytes));
      memories[at] = comm_->handle_of(part.memory, peer_);
    }
    if (count > 0 && flushes_.size() == kMaxFlushes) return nullptr;
    NetRequest* request = take_request(NetRequest::Kind::kFlush);
    if (!request) return nullptr;
    Piece piece{request};
    try {
      if (count > 0 && calls_.iflush)
        require(calls_.iflush(plugin_comm_, count, data.data(), bytes.data(), memories.data(), &piece.handle),
                "iflush");
    } catch (const Error& error) {
      give_up(error);
    }
    request->done = piece.handle == nullptr;  // the plug-in has nothing to flush
    if (!request->done) flushes_.push_back(piece);
    return request;
  }

 private:
  friend class PluginEnd<PluginReceiver, NetReceiver>;
  bool join() {
    if (!greeted_) {
      greeted_ = control_.receive(hello_);
      if (!greeted_ && control_.ended()) throw lost();
      if (greeted_) begin_listening();
      return greeted_;
    }
    void* comm = nullptr;
    net_device_handle* on_device = nullptr;
    require(calls_.accept(listener_, &comm, &on_device), "accept");
    if (!comm) return false;
    set_comm(comm);
    static_cast<void>(calls_.close_listen(std::exchange(listener_, nullptr)));
    return true;
  }

  // A plug-in's listener accepts one connection only, so each connection has its own.
  void begin_listening() {
    PluginAnswer answer;
    try {
      const NetPlugin& plugin = comm_->plugin();
      if (hello_.mark != PluginHello::kMark || hello_.max_bytes == 0)
        base::fail(ErrorCode::kIo, {},
                   "{} did not name the plug-in that it uses: both ranks must run the same version of Slipstream",
                   peer_.text());
      if (text_of(hello_.plugin) != plugin.name().substr(0, sizeof(hello_.plugin) - 1))
        base::fail(ErrorCode::kMismatch, {},
                   "{} uses the plug-in '{}', this rank the plug-in {}: all ranks need the same one", peer_.text(),
                   text_of(hello_.plugin), plugin.text());
      require(calls_.listen(calls_, comm_->context(), comm_->device(), answer.handle.data(), &listener_), "listen");
      if (!listener_)
        base::fail(ErrorCode::kIo, {}, "{}: the plug-in {} made no listener although listen succeeded", peer_.text(),
                   plugin.text());
      limits_.bytes = std::min(limits_.bytes, hello_.max_bytes);
      answer.max_bytes = limits_.bytes;
    } catch (const Error&) {
      static_cast<void>(control_.send(answer));  // max_bytes 0; give_up() sends the notice with the reason
      throw;
    }
    if (!control_.send(answer)) throw lost();
  }

  bool start(NetRequest& request) {
    if (awaits_piece_) return false;
    PluginParts parts;
    parts.count = static_cast<int>(request.count);
    for (std::size_t i = 0; i < request.count; ++i) {
      const NetPart& part = request.parts[i];
      parts.bytes[i] = std::min<std::size_t>(part.bytes - offset_, limits_.bytes);
      parts.tags[i] = part.tag;
      if (parts.bytes[i] > 0) {
        parts.data[i] = part.data + offset_;
        parts.memories[i] = comm_->handle_of(part.memory, peer_);
      } else {
        const PluginComm::EmptyBuffer empty = comm_->empty_buffer(peer_);
        parts.data[i] = empty.bytes.data();
        parts.bytes[i] = empty.bytes.size();
        parts.memories[i] = empty.handle;
      }
      if (request.count > 1 && parts.bytes[i] == limits_.bytes) fail_part(part);
    }
    Piece piece{&request, nullptr, std::min<std::size_t>(request.parts[0].bytes - offset_, limits_.bytes)};
    require(start_receive(calls_, plugin_comm_, parts, &piece.handle), "irecv");
    if (!piece.handle) return false;
    push_piece(piece);
    awaits_piece_ = piece.bytes == limits_.bytes;
    if (!awaits_piece_) set_started();
    return true;
  }

  [[noreturn]] void fail_part(const NetPart& part) const {
    base::fail(ErrorCode::kInvalidValue, {},
               "{}: a part of {} bytes: a receive of several parts takes less than {} bytes each with the plug-in {}",
               peer_.text(), part.bytes, limits_.bytes, comm_->plugin().text());
  }

  bool test_piece(const Piece& piece) {
    NetRequest& request = *piece.request;
    int done = 0;
    std::array<int, kNetMaxParts> bytes;
    bytes.fill(-1);
    require(calls_.test(piece.handle, &done, bytes.data()), "test");
    if (done == 0) return false;
    for (std::size_t i = 0; i < request.count; ++i) {
      const std::size_t room = request.count == 1 ? piece.bytes : request.parts[i].bytes;
      if (bytes[i] < 0 || static_cast<std::size_t>(bytes[i]) > room) fail_length(request.parts[i], room, bytes[i]);
      request.moved[i] += static_cast<std::size_t>(bytes[i]);
    }
    if (piece.bytes == limits_.bytes) {
      awaits_piece_ = false;
      if (static_cast<std::uint64_t>(bytes[0]) == limits_.bytes) {
        offset_ += limits_.bytes;
        return true;
      }
      set_started();
    }
    finish(request);
    return true;
  }

  [[noreturn]] void fail_length(const NetPart& part, std::size_t room, int bytes) const {
    base::fail(
        ErrorCode::kIo, {},
        "{}: the plug-in {} reported {} bytes in test for a receive with tag {} that has room for {}: the plug-in "
        "is faulty, or the ranks disagree on sizes",
        peer_.text(), comm_->plugin().text(), bytes, part.tag, room);
  }

  bool poll_flushes() {
    if (flushes_.empty()) return false;
    return std::erase_if(flushes_, [this](const Piece& piece) {
             int done = 0;
             std::array<int, kNetMaxParts> bytes{};
             require(calls_.test(piece.handle, &done, bytes.data()), "test of a flush");
             if (done != 0) piece.request->done = true;
             return done != 0;
           }) > 0;
  }
  bool is_flushing() const { return !flushes_.empty(); }

  std::vector<Piece> flushes_;
  bool awaits_piece_ = false;  // the length of the piece in flight shows whether its message has another piece
  PluginHello hello_;
  void* listener_ = nullptr;
};

}  // namespace

std::unique_ptr<NetSender> make_plugin_sender(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context,
                                              NetPeer peer, Socket control) {
  return std::make_unique<PluginSender>(plugin, std::move(context), std::move(peer), std::move(control));
}

std::unique_ptr<NetReceiver> make_plugin_receiver(const NetPlugin& plugin, std::shared_ptr<const PluginContext> context,
                                                  NetPeer peer, Socket control) {
  return std::make_unique<PluginReceiver>(plugin, std::move(context), std::move(peer), std::move(control));
}

}  // namespace slip::transport
