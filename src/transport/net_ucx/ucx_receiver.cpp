#if SLIP_HAS_UCX
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "transport/net_ucx/ucx.hpp"

namespace slip::transport {
namespace {

// After the end of the socket, messages that were sent before may still arrive. The receiver waits for kSilenceNs for
// the next one, and for kMaxWaitNs in all, because other ranks must learn of a lost rank within a second.
constexpr std::int64_t kSilenceNs = 50'000'000, kMaxWaitNs = 500'000'000;
// After a goodbye message, those that it announced may still arrive: on a network that loses packets, much later than
// the goodbye itself.
constexpr std::int64_t kAnnouncedNs = 10'000'000'000;
// The longest sleep after the end of the socket, so that the limits above are noticed in time.
constexpr std::int64_t kEndedSleepNs = 10'000'000;
constexpr ucp_tag_t kWholeTag = ~ucp_tag_t{0};

}  // namespace

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

// A sender that closes the connection cleanly says goodbye. If its process was killed, the socket ends without that.
void UcxReceiver::read_socket() {
  const Socket::Moved moved = socket_.try_recv(std::span(goodbye_).subspan(goodbye_bytes_));
  goodbye_bytes_ += moved.bytes;
  ended_ = moved.ended || goodbye_bytes_ == goodbye_.size();
  end_error_ = moved.error;
  if (ended_) ended_ns_ = moved_ns_ = base::now_ns();
}

// The sender sends no more messages. Those that it had sent before may still arrive.
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
  if (port_.worker().handle()) return;
  fail(base::make_error(ErrorCode::kAborted, {},
                        "{}: the connection has ended, because this rank closed another one in the middle of a message",
                        peer_.text()));
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
