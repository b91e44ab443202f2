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

// The control socket is read this often while nothing moves: a system call for each test() would take longer than the
// test.
constexpr double kLookUs = 1000;
// A plug-in has no descriptor to poll. So a waiting thread sleeps for 1/8 of the time that it has waited already,
// within these limits: the wait becomes at most 1/8 longer, and a long wait takes no more than a few per mille of a
// core.
constexpr std::int64_t kSleepShare = 8, kMinSleepNs = 20'000, kMaxSleepNs = 1'000'000;
// After the peer's end, messages that it sent before may still arrive. The connection is lost if none arrives for this
// time: after a goodbye message, which announced their number, and after an end without a goodbye message.
constexpr std::int64_t kAnnouncedNs = 10'000'000'000, kLostNs = 500'000'000;
// The same for a sender whose receiver said goodbye: the plug-in may still report sends that are complete.
constexpr std::int64_t kUnwantedNs = 100'000'000;
// If the plug-in fails because the peer is gone, the control connection ends within this time, too.
constexpr std::int64_t kCauseNs = 100'000'000;

template <std::size_t Bytes>
void copy_text(char (&to)[Bytes], std::string_view text) {
  text.copy(to, Bytes - 1);  // the rest stays zero
}

template <std::size_t Bytes>
std::string text_of(const char (&from)[Bytes]) {
  return base::single_line_text(std::string_view(from, ::strnlen(from, Bytes)));
}

}  // namespace

template <class Base>
PluginEnd<Base>::PluginEnd(const NetPlugin& plugin, PluginComm::Side side, NetPeer peer, Socket control)
    : comm_(std::make_shared<PluginComm>(plugin, plugin.device_of(peer.channel), side)),
      control_(std::move(control)),
      max_bytes_(comm_->properties().max_bytes),
      looked_ticks_(base::ticks()) {
  this->peer_ = std::move(peer);
  this->peer_.address += fmt::format(" by {}", plugin.file());
}

template <class Base>
std::unique_ptr<NetMemory> PluginEnd<Base>::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<PluginMemory>(bytes, comm_, std::nullopt);
}

template <class Base>
std::unique_ptr<NetMemory> PluginEnd<Base>::register_gpu_memory(std::span<std::byte> bytes, int dma_buf,
                                                                std::uint64_t offset) {
  const PluginDevice& device = comm_->properties();
  if (!device.takes_gpu_memory || (dma_buf >= 0 && !device.takes_dma_buf))
    base::fail(Code::kUnsupported, {}, "{}: device {} of the plug-in {} takes {}: copy the bytes to host memory first",
               this->peer_.text(), device.name, comm_->plugin().text(),
               device.takes_gpu_memory ? "no dma-buf" : "no GPU memory");
  return std::make_unique<PluginMemory>(bytes, comm_, PluginMemory::Gpu{dma_buf, offset});
}

// Runs a step. An error of the plug-in ends the connection: the peer is notified, and later calls throw it again.
template <class Base>
template <class Body>
bool PluginEnd<Base>::guarded(const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    const Error cause = with_cause(error);
    PluginNotice notice;
    notice.mark = PluginNotice::kFailure;
    notice.code = static_cast<std::int32_t>(cause.code());
    copy_text(notice.text, base::bare_text(cause));
    static_cast<void>(control_.send(notice));
    this->fail(cause);
  }
}

template <class Base>
bool PluginEnd<Base>::progress() {
  this->require_no_error();
  return guarded([this] {
    bool moved = !comm_->get() && join();
    if (comm_->get()) {
      start_all();
      while (landed_ < flown_ && land_oldest()) moved = true;
      if (moved) start_all();
      moved = poll_flushes() || moved;
    }
    if (moved) {
      idle_ticks_ = 0;
      return true;
    }
    const std::uint64_t now = base::ticks();
    if (idle_ticks_ == 0) idle_ticks_ = now;
    if (static_cast<double>(now - looked_ticks_) > kLookUs * base::ticks_per_us()) look_at_control();
    return false;
  });
}

template <class Base>
NetRequest* PluginEnd<Base>::enqueue(NetRequest* request) {
  if (!expects()) idle_ticks_ = 0;
  queue_[queued_++ % kNetMaxRequests] = request;
  static_cast<void>(guarded([this] {
    start_all();
    return true;
  }));
  return request;
}

template <class Base>
void PluginEnd<Base>::start_queued() {
  while (comm_->get() && begun_ < queued_ && flown_ - landed_ < kMaxInFlight) {
    if (!start(*queue_[begun_ % kNetMaxRequests])) return;
  }
}

template <class Base>
bool PluginEnd<Base>::land_oldest() {
  const Piece piece = flight_[landed_ % kMaxInFlight];
  int done = 0;
  std::array<int, kNetMaxParts> bytes;
  std::fill_n(bytes.begin(), piece.request->count, -1);
  require(comm_->calls().test(piece.handle, &done, bytes.data()), "test");
  if (done == 0) return false;
  ++landed_;
  land(piece, bytes);
  return true;
}

template <class Base>
void PluginEnd<Base>::finish(NetRequest& request) {
  request.done = true;
  ++finished_;
}

template <class Base>
void PluginEnd<Base>::require(net_result result, std::string_view function) const {
  if (result != NET_SUCCESS) throw comm_->plugin().error(function, result, this->peer_.text());
}

template <class Base>
std::int64_t PluginEnd<Base>::idle_ns() const {
  if (idle_ticks_ == 0) return 0;
  return static_cast<std::int64_t>(static_cast<double>(base::ticks() - idle_ticks_) / base::ticks_per_us() * 1e3);
}

template <class Base>
void PluginEnd<Base>::look_at_control() {
  looked_ticks_ = base::ticks();
  if (!greeted_) return;  // join() reads the control socket
  control_.look();
  const PluginNotice* const notice = control_.notice();
  if (notice && notice->mark == PluginNotice::kFailure) throw with_cause(lost());
  if (!expects()) return;
  const bool goodbye = notice && notice->mark == PluginNotice::kGoodbye;
  if (!goodbye && !control_.ended()) return;
  constexpr bool kSends = std::is_same_v<Base, NetSender>;
  if (goodbye && !kSends && finished_ >= notice->messages) throw lost();
  const std::int64_t limit_ns = !goodbye ? kLostNs : kSends ? kUnwantedNs : kAnnouncedNs;
  const std::int64_t since_end_ns = control_.ended() ? base::now_ns() - control_.ended_ns() : limit_ns;
  if (std::min(idle_ns(), since_end_ns) >= limit_ns) throw lost();
}

template <class Base>
Error PluginEnd<Base>::lost() const {
  return base::make_error(Code::kRankLost, {}, "{} is gone: it closed the connection with {} messages not done{}",
                          this->peer_.text(), queued_ - finished_, control_.end_text());
}

// The plug-in's error may be only a consequence: the peer has failed and reported the reason, or it is gone.
template <class Base>
Error PluginEnd<Base>::with_cause(const Error& error) {
  if (error.code() != Code::kIo && error.code() != Code::kRankLost) return error;
  if (greeted_ && !control_.notice() && !control_.ended()) {
    static_cast<void>(wait_for(control_.descriptor(), POLLIN, Deadline{}.within(kCauseNs)));
    control_.look();
  }
  if (const PluginNotice* const notice = control_.notice(); notice && notice->mark == PluginNotice::kFailure) {
    const bool known = notice->code > 0 && notice->code <= static_cast<std::int32_t>(Code::kAborted);
    return base::make_error(known ? static_cast<Code>(notice->code) : Code::kRankLost, {}, "{} gave up: {}",
                            this->peer_.text(), text_of(notice->text));
  }
  if (error.code() == Code::kRankLost || !control_.ended()) return error;
  return base::make_error(Code::kRankLost, {}, "{} is gone{}; {}", this->peer_.text(), control_.end_text(),
                          base::bare_text(error));
}

template <class Base>
std::int64_t PluginEnd<Base>::watch(std::vector<pollfd>& all) const {
  if (!control_.ended()) all.push_back({control_.descriptor(), POLLIN, 0});
  if (!greeted_ || !expects()) return kNetMaxSleepNs;  // the control socket suffices
  return std::clamp(idle_ns() / kSleepShare, kMinSleepNs, kMaxSleepNs);
}

template <class Base>
void PluginEnd<Base>::close() {
  PluginNotice notice;
  notice.mark = PluginNotice::kGoodbye;
  notice.messages = finished_;
  static_cast<void>(control_.send(notice));
  comm_->close();
}

template class PluginEnd<NetSender>;
template class PluginEnd<NetReceiver>;

PluginSender::PluginSender(const NetPlugin& plugin, NetPeer peer, Socket control)
    : PluginEnd(plugin, PluginComm::Side::kSend, std::move(peer), std::move(control)) {
  PluginHello hello;
  hello.version = plugin.version();
  hello.max_bytes = max_bytes_;
  copy_text(hello.plugin, plugin.name());
  if (!control_.send(hello)) throw lost();
}

bool PluginSender::join() {
  if (!greeted_) {
    greeted_ = control_.receive(answer_);
    if (!greeted_ && control_.ended()) throw lost();
    if (!greeted_) return false;
    if (answer_.mark != PluginAnswer::kMark)
      base::fail(Code::kIo, {},
                 "{} answered with bytes that are not its address: both ranks must run the same version of Slipstream",
                 peer_.text());
    max_bytes_ = std::min(max_bytes_, answer_.max_bytes);
  }
  if (max_bytes_ == 0) {  // the receiver failed; a notice with the reason follows
    control_.look();
    if (control_.notice() || control_.ended()) throw lost();
    return false;
  }
  void* comm = nullptr;
  require(comm_->calls().connect(comm_->calls(), comm_->device(), answer_.handle.data(), &comm), "connect");
  comm_->set(comm);
  return comm != nullptr;
}

NetRequest* PluginSender::isend(const NetPart& part, bool) {
  require_no_error();
  check_part(part);
  comm_->require_own(part, peer_);
  NetRequest* request = take_request(NetRequest::Kind::kSend);
  if (!request) return nullptr;
  request->count = 1;
  request->parts[0] = part;
  return enqueue(request);
}

bool PluginSender::start(NetRequest& request) {
  const NetPart& part = request.parts[0];
  Piece piece{&request, nullptr, std::min<std::size_t>(part.bytes - offset_, max_bytes_)};
  piece.last = piece.bytes < max_bytes_;
  std::span<std::byte> bytes(part.data + offset_, piece.bytes);
  void* memory = nullptr;
  if (bytes.empty()) {
    const PluginComm::Empty empty = comm_->empty(peer_);
    bytes = empty.bytes.first(0);
    memory = empty.handle;
  } else {
    memory = comm_->handle_of(part.memory, peer_);
  }
  require(comm_->calls().isend(comm_->calls(), comm_->get(), bytes, part.tag, memory, &piece.handle), "isend");
  if (!piece.handle) return false;
  push_piece(piece);
  offset_ += piece.bytes;
  if (piece.last) set_started();
  return true;
}

void PluginSender::land(const Piece& piece, std::span<const int>) {
  if (piece.last) finish(*piece.request);
}

PluginReceiver::PluginReceiver(const NetPlugin& plugin, NetPeer peer, Socket control)
    : PluginEnd(plugin, PluginComm::Side::kReceive, std::move(peer), std::move(control)) {}

PluginReceiver::~PluginReceiver() {
  close();
  if (listener_) static_cast<void>(comm_->calls().close_listen(listener_));
}

bool PluginReceiver::join() {
  if (!greeted_) {
    greeted_ = control_.receive(hello_);
    if (!greeted_ && control_.ended()) throw lost();
    if (greeted_) begin_listening();
    return greeted_;
  }
  void* comm = nullptr;
  net_device_handle* on_device = nullptr;
  require(comm_->calls().accept(listener_, &comm, &on_device), "accept");
  if (!comm) return false;
  comm_->set(comm);
  static_cast<void>(comm_->calls().close_listen(std::exchange(listener_, nullptr)));
  return true;
}

// A plug-in's listener accepts one connection only, so each connection has its own.
void PluginReceiver::begin_listening() {
  PluginAnswer answer;
  try {
    const NetPlugin& plugin = comm_->plugin();
    if (hello_.mark != PluginHello::kMark || hello_.max_bytes == 0)
      base::fail(Code::kIo, {},
                 "{} did not name the plug-in that it uses: both ranks must run the same version of Slipstream",
                 peer_.text());
    if (text_of(hello_.plugin) != plugin.name().substr(0, sizeof(hello_.plugin) - 1))
      base::fail(Code::kMismatch, {}, "{} uses the plug-in '{}', this rank the plug-in {}: all ranks need the same one",
                 peer_.text(), text_of(hello_.plugin), plugin.text());
    require(comm_->calls().listen(comm_->calls(), comm_->device(), answer.handle.data(), &listener_), "listen");
    if (!listener_)
      base::fail(Code::kIo, {}, "{}: the plug-in {} made no listener although listen succeeded", peer_.text(),
                 plugin.text());
    max_bytes_ = std::min(max_bytes_, hello_.max_bytes);
    answer.max_bytes = max_bytes_;
  } catch (const Error&) {
    static_cast<void>(control_.send(answer));  // the notice with the reason follows it
    throw;
  }
  if (!control_.send(answer)) throw lost();
}

NetRequest* PluginReceiver::irecv(std::span<const NetPart> parts) {
  require_no_error();
  const std::size_t max_parts = comm_->properties().max_parts;
  if (parts.empty() || parts.size() > max_parts)
    base::fail(Code::kInvalidValue, {}, "a receive of {} parts: 1 to {} are possible with the plug-in {}", parts.size(),
               max_parts, comm_->plugin().text());
  for (const NetPart& part : parts) {
    check_part(part);
    comm_->require_own(part, peer_);
  }
  NetRequest* request = take_request(NetRequest::Kind::kReceive);
  if (!request) return nullptr;
  request->count = parts.size();
  request->moved.fill(0);
  std::copy(parts.begin(), parts.end(), request->parts.begin());
  return enqueue(request);
}

bool PluginReceiver::start(NetRequest& request) {
  if (awaits_piece_) return false;
  std::array<void*, kNetMaxParts> data, memories;
  std::array<std::size_t, kNetMaxParts> bytes;
  std::array<int, kNetMaxParts> tags;
  for (std::size_t i = 0; i < request.count; ++i) {
    const NetPart& part = request.parts[i];
    bytes[i] = std::min<std::size_t>(part.bytes - offset_, max_bytes_);
    tags[i] = part.tag;
    if (bytes[i] == 0) {
      const PluginComm::Empty empty = comm_->empty(peer_);
      data[i] = empty.bytes.data();
      bytes[i] = empty.bytes.size();
      memories[i] = empty.handle;
    } else {
      data[i] = part.data + offset_;
      memories[i] = comm_->handle_of(part.memory, peer_);
    }
    if (request.count > 1 && bytes[i] == max_bytes_)
      base::fail(Code::kInvalidValue, {},
                 "{}: a part of {} bytes: a receive of several parts takes less than {} bytes each with the plug-in {}",
                 peer_.text(), part.bytes, max_bytes_, comm_->plugin().text());
  }
  Piece piece{&request, nullptr, std::min<std::size_t>(request.parts[0].bytes - offset_, max_bytes_)};
  const PluginParts parts{static_cast<int>(request.count), data.data(), bytes.data(), tags.data(), memories.data()};
  require(comm_->calls().irecv(comm_->calls(), comm_->get(), parts, &piece.handle), "irecv");
  if (!piece.handle) return false;
  push_piece(piece);
  awaits_piece_ = piece.bytes == max_bytes_;
  if (!awaits_piece_) set_started();
  return true;
}

void PluginReceiver::land(const Piece& piece, std::span<const int> bytes) {
  NetRequest& request = *piece.request;
  for (std::size_t i = 0; i < request.count; ++i) {
    const std::size_t room = request.count == 1 ? piece.bytes : request.parts[i].bytes;
    if (bytes[i] < 0 || static_cast<std::size_t>(bytes[i]) > room)
      base::fail(
          Code::kIo, {},
          "{}: the plug-in {} reported {} bytes in test for a receive with tag {} that has room for {}: the plug-in "
          "is faulty, or the ranks disagree on sizes",
          peer_.text(), comm_->plugin().text(), bytes[i], request.parts[i].tag, room);
    request.moved[i] += static_cast<std::size_t>(bytes[i]);
  }
  if (piece.bytes == max_bytes_) {
    awaits_piece_ = false;
    if (static_cast<std::uint64_t>(bytes[0]) == max_bytes_) {
      offset_ += max_bytes_;
      return;
    }
    set_started();
  }
  finish(request);
}

// Host memory needs no flush: the plug-in's test() returns when the CPU sees the bytes.
NetRequest* PluginReceiver::flush(std::span<const NetPart> parts) {
  require_no_error();
  std::array<void*, kNetMaxParts> data, memories;
  std::array<int, kNetMaxParts> bytes;
  int count = 0;
  for (const NetPart& part : parts.first(std::min(parts.size(), kNetMaxParts))) {
    check_part(part);
    comm_->require_own(part, peer_);
    if (part.bytes == 0 || !static_cast<const PluginMemory*>(part.memory)->on_gpu() || !comm_->get()) continue;
    const auto at = static_cast<std::size_t>(count++);
    data[at] = part.data;
    bytes[at] = static_cast<int>(std::min<std::size_t>(part.bytes, max_bytes_));
    memories[at] = comm_->handle_of(part.memory, peer_);
  }
  NetRequest* request = take_request(NetRequest::Kind::kFlush);
  if (!request) return nullptr;
  Piece piece{request};
  static_cast<void>(guarded([&] {
    if (count > 0 && comm_->calls().iflush)
      require(comm_->calls().iflush(comm_->get(), count, data.data(), bytes.data(), memories.data(), &piece.handle),
              "iflush");
    return true;
  }));
  request->done = piece.handle == nullptr;  // the plug-in has nothing to flush
  if (!request->done) flushes_.push_back(piece);
  return request;
}

bool PluginReceiver::poll_flushes() {
  return std::erase_if(flushes_, [this](const Piece& piece) {
           int done = 0;
           std::array<int, kNetMaxParts> bytes{};
           require(comm_->calls().test(piece.handle, &done, bytes.data()), "test of a flush");
           if (done != 0) piece.request->done = true;
           return done != 0;
         }) > 0;
}

}  // namespace slip::transport
