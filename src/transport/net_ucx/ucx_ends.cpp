#if SLIP_HAS_UCX
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "transport/net_ucx/ucx.hpp"

namespace slip::transport {
namespace {

constexpr std::uint32_t kMaxAddressBytes = 1 << 20;  // a worker's address has hundreds of bytes, some for each device
constexpr std::size_t kReadBytes = 4096;
// After the socket has ended without a goodbye message, messages that were sent before may still arrive. The receiver
// waits for the next one for kSilenceNs, and for kMaxWaitNs in all, because other ranks must learn of a lost rank
// within a second.
constexpr std::int64_t kSilenceNs = 50'000'000, kMaxWaitNs = 500'000'000;
// A goodbye message tells how many messages were sent. Some of them may still arrive: on a network that loses packets,
// much later than the goodbye message.
constexpr std::int64_t kAnnouncedNs = 10'000'000'000;
// The longest sleep after the end of the socket, so that the limits above are noticed in time.
constexpr std::int64_t kEndedSleepNs = 10'000'000;
constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};

template <class T>
std::optional<T> read_as(std::span<const std::byte> bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T result;
  std::memcpy(&result, bytes.data(), sizeof(T));
  return result;
}

Error no_worker(const NetPeer& peer) {
  return base::make_error(
      ErrorCode::kAborted, {},
      "{}: the connection has ended, because this rank closed another one in the middle of a message", peer.text());
}

}  // namespace

UcxSender::UcxSender(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker)
    : socket_(std::move(socket)), port_(std::move(worker)) {
  peer_ = std::move(peer);
}

UcxSender::~UcxSender() {
  if (under_way_ > 0 || port_.worker().is_inherited()) return;
  const UcxGoodbye goodbye{.messages = sent_};
  static_cast<void>(socket_.try_send(std::as_bytes(std::span(&goodbye, 1))));
}

std::unique_ptr<NetMemory> UcxSender::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<UcxMemory>(port_.worker().context(), bytes);
}

NetRequest* UcxSender::isend(const NetPart& part, bool) {
  NetRequest* request = take_send(part);
  if (!request) return nullptr;
  ++under_way_;
  const std::size_t index = request->index;
  const base::LockGuard lock(port_.worker().lock());
  require_worker();
  if (!port_.endpoint() || !queued_.empty()) queued_.push_back(index);
  else send(index);
  return request;
}

void UcxSender::send(std::size_t index) {
  UcxOperation& operation = operations_[index];
  const NetPart& part = requests_[index].parts[0];
  operation.index = static_cast<std::uint32_t>(index);
  port_.start(operation);
  const ucp_request_param_t params = ucx_params(operation, part);
  const UcxLibrary& ucx = port_.worker().ucx();
  ++sent_;
  if (port_.started(operation,
                    ucx.tag_send(port_.endpoint()->handle, part.data, part.bytes, ucx_tag(number_, part.tag), &params)))
    finish(operation);
}

void UcxSender::finish(const UcxOperation& operation) {
  if (operation.status != UCS_OK) fail_lost(operation.status);
  NetRequest& request = requests_[operation.index];
  if (request.parts[0].bytes >= kUcxRendezvousBytes) port_.endpoint()->is_new = false;
  request.done = true;
  --under_way_;
}

// Takes the operations that UCX has completed. False: none.
bool UcxSender::settle() {
  if (port_.completed().empty()) return false;
  for (const UcxOperation* one : port_.completed()) finish(*one);
  port_.completed().clear();
  return true;
}

bool UcxSender::progress() SLIP_NO_THREAD_SAFETY_ANALYSIS {  // see UcxTryLock
  require_no_error();
  if (under_way_ == 0 && port_.endpoint()) {
    if (idle_.due()) static_cast<void>(read_socket());
    return false;
  }
  UcxWorker& worker = port_.worker();
  if (!port_.endpoint()) {
    const base::LockGuard lock(worker.lock());
    require_worker();
    return read_socket();
  }
  const UcxTryLock held(worker);
  if (!held) return false;
  require_worker();
  bool moved = port_.progress();
  moved = settle() || moved;
  if (port_.endpoint()->status != UCS_OK && under_way_ > 0) fail_lost(port_.endpoint()->status);
  if (!moved && idle_.due()) moved = read_socket();
  return moved;
}

// Reads the answer, then a refusal. False: no bytes have arrived.
bool UcxSender::read_socket() {
  std::array<std::byte, kReadBytes> bytes;
  const Socket::Moved moved = socket_.try_recv(bytes);
  unread_.insert(unread_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
  bool acted = false;
  if (!port_.endpoint()) acted = read_answer();
  if (port_.endpoint()) read_refusal(moved.ended, moved.error);
  else if (moved.ended) read_refusal(true, moved.error);
  return acted || moved.bytes > 0;
}

// Reads the address of the receiver's worker. False: it has not arrived completely.
bool UcxSender::read_answer() {
  const std::optional<UcxAnswer> answer = read_as<UcxAnswer>(unread_);
  if (!answer) return false;
  if (answer->mark != UcxAnswer::kMark || answer->address_bytes == 0 || answer->address_bytes > kMaxAddressBytes)
    fail(base::make_error(
        ErrorCode::kIo, {},
        "{} sent bytes that are no address of UCX: both sides must run the same version of Slipstream", peer_.text()));
  if (unread_.size() < sizeof(UcxAnswer) + answer->address_bytes) return false;
  number_ = answer->number;
  connect();
  unread_.erase(unread_.begin(),
                unread_.begin() + static_cast<std::ptrdiff_t>(sizeof(UcxAnswer) + answer->address_bytes));
  for (const std::size_t index : std::exchange(queued_, {})) send(index);
  return true;
}

void UcxSender::connect() {
  const UcxContext& context = port_.worker().context();
  ucs_status_t status = UCS_OK;
  port_.set_endpoint(port_.worker().connect(std::span(unread_).subspan(sizeof(UcxAnswer)), status));
  if (port_.endpoint()) return;
  const std::string limits = ucx_limits_text();
  fail(base::make_error(
      ErrorCode::kUnsupported, {},
      "{}: {} has no transport that reaches it: {}. This rank has {}{}. Compare with `ucx_info -d` on the other "
      "host, set the variables of UCX alike, or set SLIP_NET=tcp",
      peer_.text(), context.ucx().text, context.status_text(status), fmt::join(context.transports(), ", "),
      limits.empty() ? "" : " with " + limits));
}

// Throws if the receiver has sent UcxTooLarge. Also throws if the receiver has closed the connection (`ended`) and
// messages are not sent yet; otherwise the end is no error.
void UcxSender::read_refusal(bool ended, int error) {
  if (const std::optional<UcxTooLarge> refusal = read_as<UcxTooLarge>(unread_);
      port_.endpoint() && refusal && refusal->mark == UcxTooLarge::kMark)
    fail(base::make_error(ErrorCode::kInvalidValue, {},
                          "{} has room for {} bytes only: {} bytes with tag {} were sent; both sides must agree on "
                          "sizes",
                          peer_.text(), refusal->room, refusal->bytes, refusal->tag));
  if (!ended || under_way_ == 0) return;
  fail(base::make_error(ErrorCode::kRankLost, {}, "{} closed the connection with {} messages not yet sent{}",
                        peer_.text(), under_way_, reason_text(error)));
}

void UcxSender::fail_lost(ucs_status_t status) {
  static_cast<void>(read_socket());  // the receiver may have sent the reason
  fail(base::make_error(ErrorCode::kRankLost, {}, "{} is gone: sending over UCX failed: {}", peer_.text(),
                        port_.worker().context().status_text(status)));
}

void UcxSender::require_worker() {
  if (!port_.worker().handle()) fail(no_worker(peer_));
}

std::int64_t UcxSender::watch(std::vector<pollfd>& all) const {
  idle_.make_due();
  all.push_back({socket_.descriptor(), POLLIN, 0});
  return port_.endpoint() ? port_.watch(all) : kNetMaxSleepNs;
}

UcxReceiver::UcxReceiver(NetPeer peer, Socket socket, std::shared_ptr<UcxWorker> worker, std::uint32_t number)
    : socket_(std::move(socket)), number_(number), port_(std::move(worker)) {
  peer_ = std::move(peer);
}

std::unique_ptr<NetMemory> UcxReceiver::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<UcxMemory>(port_.worker().context(), bytes);
}

NetRequest* UcxReceiver::irecv(std::span<const NetPart> parts) {
  NetRequest* request = take_receive(parts);
  if (!request) return nullptr;
  const std::size_t index = request->index;
  missing_[index] = static_cast<std::uint8_t>(parts.size());
  unfinished_ += parts.size();
  UcxWorker& worker = port_.worker();
  const base::LockGuard lock(worker.lock());
  require_worker();
  for (std::size_t part = 0; part < parts.size(); ++part) {
    UcxOperation& operation = operations_[index * kNetMaxParts + part];
    operation.index = static_cast<std::uint32_t>(index * kNetMaxParts + part);
    port_.start(operation);
    ucp_request_param_t params = ucx_params(operation, parts[part]);
    params.cb.recv = &UcxPort::on_received;
    // A message that came before its receive is reported by the callback, too: UCX 1.13 returns its length in no other
    // way.
    params.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    const ucs_status_ptr_t result = worker.ucx().tag_recv(worker.handle(), parts[part].data, parts[part].bytes,
                                                          ucx_tag(number_, parts[part].tag), kWholeTag, &params);
    if (port_.started(operation, result)) finish_part(operation);
  }
  static_cast<void>(settle());
  return request;
}

bool UcxReceiver::progress() SLIP_NO_THREAD_SAFETY_ANALYSIS {  // see UcxTryLock
  require_no_error();
  if (unfinished_ == 0) return false;
  UcxWorker& worker = port_.worker();
  const UcxTryLock held(worker);
  if (!held) return false;
  require_worker();
  bool moved = port_.progress();
  moved = settle() || moved;
  if (ended_) check_end(moved);
  else if (!moved && idle_.due()) read_socket();
  return moved;
}

// Takes the operations that UCX has completed. False: none.
bool UcxReceiver::settle() {
  if (port_.completed().empty()) return false;
  for (const UcxOperation* one : port_.completed()) finish_part(*one);
  port_.completed().clear();
  return true;
}

void UcxReceiver::finish_part(const UcxOperation& operation) {
  const std::size_t index = operation.index / kNetMaxParts, part = operation.index % kNetMaxParts;
  NetRequest& request = requests_[index];
  if (operation.status == UCS_ERR_MESSAGE_TRUNCATED) fail_too_large(operation, request.parts[part]);
  if (operation.status != UCS_OK)
    fail(base::make_error(ErrorCode::kRankLost, {}, "{} is gone: receiving over UCX failed: {}", peer_.text(),
                          port_.worker().context().status_text(operation.status)));
  request.moved[part] = operation.bytes;
  ++received_;
  --unfinished_;
  if (--missing_[index] == 0) request.done = true;
}

void UcxReceiver::fail_too_large(const UcxOperation& operation, const NetPart& part) {
  const UcxTooLarge refusal{.tag = part.tag, .bytes = operation.bytes, .room = part.bytes};
  static_cast<void>(socket_.try_send(std::as_bytes(std::span(&refusal, 1))));
  fail(base::make_error(ErrorCode::kInvalidValue, {},
                        "{} sent {} bytes with tag {}, and the receive has room for {}; both sides must agree on sizes",
                        peer_.text(), operation.bytes, part.tag, part.bytes));
}

// A sender that closes the connection cleanly sends UcxGoodbye. If its process was killed, the socket ends without it.
void UcxReceiver::read_socket() {
  const Socket::Moved moved = socket_.try_recv(std::span(goodbye_).subspan(goodbye_bytes_));
  goodbye_bytes_ += moved.bytes;
  ended_ = moved.ended || goodbye_bytes_ == goodbye_.size();
  end_error_ = moved.error;
  if (ended_) ended_ns_ = moved_ns_ = base::now_ns();
}

// The sender sends no more messages. Those that it sent before may still arrive. Throws when it is too late for them.
void UcxReceiver::check_end(bool moved) {
  const std::int64_t now = base::now_ns();
  if (moved) moved_ns_ = now;
  UcxGoodbye goodbye;
  std::memcpy(&goodbye, goodbye_.data(), sizeof(goodbye));
  const bool said_goodbye = goodbye_bytes_ == sizeof(goodbye) && goodbye.mark == UcxGoodbye::kMark;
  const bool may_come = said_goodbye ? received_ < goodbye.messages && now - ended_ns_ < kAnnouncedNs
                                     : now - moved_ns_ < kSilenceNs && now - ended_ns_ < kMaxWaitNs;
  if (unfinished_ == 0 || may_come) return;
  fail(base::make_error(ErrorCode::kRankLost, {},
                        "{} is gone: it closed the connection while {} of its messages were expected{}", peer_.text(),
                        unfinished_, reason_text(end_error_)));
}

void UcxReceiver::require_worker() {
  if (!port_.worker().handle()) fail(no_worker(peer_));
}

std::int64_t UcxReceiver::watch(std::vector<pollfd>& all) const {
  idle_.make_due();
  // A socket that has ended is always readable: a thread that polls it would not sleep.
  if (ended_) return std::min(port_.watch(all), kEndedSleepNs);
  all.push_back({socket_.descriptor(), POLLIN, 0});
  return port_.watch(all);
}

}  // namespace slip::transport
#endif
