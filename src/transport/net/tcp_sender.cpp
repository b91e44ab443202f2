#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.hpp"
#include "transport/net/tcp.hpp"

namespace slip::transport {
namespace {
constexpr std::size_t kMaxPieces = 32;  // maximum length of the iovec list of one system call
// The approximate maximum number of bytes that one push() sends. Then the thread serves other sockets and connections.
constexpr std::size_t kMaxSendBytes = std::size_t{8} << 20;
constexpr std::size_t kJoinedBytes = 2048;  // pieces of up to this many bytes together are copied into one buffer

// Copies a few small pieces into one buffer: that costs less than passing an iovec list to the kernel.
Socket::Moved send_joined(const Socket& socket, std::span<const iovec> pieces) {
  std::array<std::byte, kJoinedBytes> joined;
  std::size_t bytes = 0;
  for (const iovec& piece : pieces) {
    std::memcpy(joined.data() + bytes, piece.iov_base, piece.iov_len);
    bytes += piece.iov_len;
  }
  return socket.try_send(std::span(joined).first(bytes));
}

}  // namespace

TcpSender::TcpSender(Greeted greeted, const NetOptions& options, bool stays_on_host)
    : stripes_{greeted.sockets.size(), options.stripe_bytes},
      // Between ranks of one host the kernel copies despite MSG_ZEROCOPY.
      zero_copy_from_(stays_on_host ? 0 : options.zero_copy_from),
      silence_ns_(options.silence_ns) {
  peer_ = std::move(greeted.peer);
  for (std::size_t i = 0; i < greeted.sockets.size(); ++i) {
    Outgoing out;
    out.socket = std::move(greeted.sockets[i]);
    if (i < greeted.paths.size()) {
      out.path = greeted.paths[i]->text();
      out.interface = greeted.paths[i]->local.name();
    }
    if (zero_copy_from_ > 0) out.zero_copy.enable(out.socket.descriptor());
    sockets_.push_back(std::move(out));
  }
}

NetRequest* TcpSender::isend(const NetPart& part, bool more) {
  NetRequest* request = take_send(part);
  if (!request) return nullptr;
  const std::size_t index = request->index;
  OutMessage& message = messages_[index];
  message = {.header = {.bytes = part.bytes, .tag = part.tag}, .sockets_left = sockets_.size()};
  if (last_ != kNone) messages_[last_].next = index;
  last_ = index;
  for (Outgoing& out : sockets_) {
    if (out.at == kNone) {  // otherwise the socket still sends an earlier message
      out.at = index;
      if (bytes_by(out, index) == 0) pass(out);
      else out.held = true;
    }
    if (!more && std::exchange(out.held, false)) static_cast<void>(push(out));
  }
  return request;
}

bool TcpSender::progress() {
  require_no_error();
  bool moved_some = false;
  for (Outgoing& out : sockets_) {
    moved_some = push(out) || moved_some;
    moved_some = settle_notices(out) || moved_some;
  }
  if (!moved_some) read_answer();
  return moved_some;
}

std::size_t TcpSender::bytes_by(const Outgoing& out, std::size_t message) const {
  const auto index = static_cast<std::size_t>(&out - sockets_.data());
  return head_bytes(out) + stripes_.on(index, messages_[message].header.bytes);
}

// Sends over this socket as many bytes as the kernel accepts without blocking. False: none.
bool TcpSender::push(Outgoing& out) {
  std::size_t pushed = 0;
  while (out.at != kNone && pushed < kMaxSendBytes) {
    std::array<iovec, kMaxPieces> pieces;
    bool zero_copy = false;
    const std::size_t count = gather(out, pieces, zero_copy);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < count; ++i) wanted += pieces[i].iov_len;
    const std::span<const iovec> all = std::span(pieces).first(count);
    Socket::Moved moved = count > 1 && wanted <= kJoinedBytes && !zero_copy
                              ? send_joined(out.socket, all)
                              : out.socket.try_send(all, zero_copy ? MSG_ZEROCOPY : 0);
    if (zero_copy && moved.error == ENOBUFS) {  // too many pages are pinned: send a copy this time
      zero_copy = false;
      moved = out.socket.try_send(all, 0);
    }
    if (moved.ended) fail_lost(out, moved.error);
    if (zero_copy && moved.bytes > 0) {
      out.zero_copy.sent(out.at);
      ++messages_[out.at].notices_left;
    }
    advance(out, moved.bytes);
    pushed += moved.bytes;
    if (moved.bytes < wanted) break;  // the socket is full: no second call to find that out
  }
  return pushed > 0;
}

// Fills `pieces` with the headers and data of as many messages as one system call can send. A zero-copy message is sent
// alone.
std::size_t TcpSender::gather(const Outgoing& out, std::span<iovec> pieces, bool& zero_copy) const {
  const auto index = static_cast<std::size_t>(&out - sockets_.data());
  const std::size_t head = head_bytes(out);
  std::size_t count = 0, sent = out.sent;
  for (std::size_t at = out.at; at != kNone && count + 2 <= pieces.size(); at = messages_[at].next, sent = 0) {
    const TcpHeader& header = messages_[at].header;
    const bool uses_zero_copy = zero_copy_from_ > 0 && header.bytes >= zero_copy_from_ && out.zero_copy.possible();
    if (uses_zero_copy && count > 0) break;
    if (sent < head) {
      auto* from = reinterpret_cast<std::byte*>(const_cast<TcpHeader*>(&header));
      pieces[count++] = {from + sent, head - sent};
      sent = head;
    }
    const std::size_t end = head + stripes_.on(index, header.bytes);
    while (sent < end && count < pieces.size()) {
      const Stripes::Piece piece = stripes_.piece(index, header.bytes, sent - head);
      pieces[count++] = {requests_[at].parts[0].data + piece.offset, piece.bytes};
      sent += piece.bytes;
    }
    zero_copy = uses_zero_copy;
    if (uses_zero_copy || sent < end) break;
  }
  return count;
}

void TcpSender::advance(Outgoing& out, std::size_t bytes) {
  for (;;) {
    const std::size_t rest = bytes_by(out, out.at) - out.sent;
    if (bytes < rest) {
      out.sent += bytes;
      return;
    }
    bytes -= rest;
    pass(out);
    if (out.at == kNone) return;
  }
}

// Moves the socket on to the next message that has bytes for it. Every socket passes every message, so that no request
// is reused before all sockets have passed its message.
void TcpSender::pass(Outgoing& out) {
  do {
    const std::size_t message = out.at;
    out.at = messages_[message].next;
    out.sent = 0;
    --messages_[message].sockets_left;
    finish_if_done(message);
  } while (out.at != kNone && bytes_by(out, out.at) == 0);
}

void TcpSender::finish_if_done(std::size_t message) {
  if (messages_[message].sockets_left > 0) return;
  if (last_ == message) last_ = kNone;
  if (messages_[message].notices_left > 0) return;
  requests_[message].done = true;
}

bool TcpSender::settle_notices(Outgoing& out) {
  return out.zero_copy.outstanding() && out.zero_copy.settle(out.socket.descriptor(), [this](std::size_t message) {
    --messages_[message].notices_left;
    finish_if_done(message);
  });
}

// A receiver whose receive is too small sends TcpTooLarge and stops reading. A receiver that has closed the connection
// is an error only while messages are not sent yet. A message that waits only for its zero-copy notifications is sent:
// the notifications come although the receiver has closed, and maybe later than its FIN.
void TcpSender::read_answer() {
  const Socket::Moved moved = sockets_[0].socket.try_recv(std::span(answer_).subspan(answer_bytes_));
  answer_bytes_ += moved.bytes;
  if (answer_bytes_ == answer_.size()) {
    TcpTooLarge refusal;
    std::memcpy(&refusal, answer_.data(), sizeof(refusal));
    fail(ErrorCode::kInvalidValue,
         "{} has room for {} bytes only: {} bytes with tag {} were sent; both sides must agree on sizes", peer_.text(),
         refusal.room, refusal.bytes, refusal.tag);
  }
  answer_ended_ = moved.ended;
  if (!moved.ended || last_ == kNone) return;
  const auto unsent = std::ranges::count_if(messages_, [](const OutMessage& one) { return one.sockets_left > 0; });
  fail(ErrorCode::kRankLost, "{} closed the connection with {} messages not yet sent{}", peer_.text(), unsent,
       reason_text(moved.error));
}

void TcpSender::fail_lost(const Outgoing& out, int error) {
  read_answer();  // throws the reason if the receiver has sent one
  fail(ErrorCode::kRankLost, "{} is gone: sending{} failed: {}", peer_.text(),
       out.path.empty() ? "" : " over " + out.path, std::strerror(error));
}

// The failure detector uses one interface only, so it does not notice that a path over another interface is cut.
void TcpSender::check() {
  require_no_error();
  for (Outgoing& out : sockets_) {
    if (out.path.empty() || silence_ns_ == 0) continue;
    const std::int64_t silent_ns = unanswered_ns(out.socket, out.unanswered_since);
    if (silent_ns < silence_ns_) continue;
    fail(ErrorCode::kIo,
         "rank {} cannot be reached over {}: it acknowledged no bytes for {:.1f} s. The rank may be "
         "alive: check the cable, the switch and the interface on both hosts, or leave {} out with "
         "SLIP_SOCKET_IFNAME",
         peer_.rank, out.path, static_cast<double>(silent_ns) / 1e9, out.interface);
  }
}

// A connection that the receiver has closed is always readable. poll() also reports zero-copy notifications, as
// POLLERR, which needs no bit of its own.
std::int64_t TcpSender::watch(std::vector<pollfd>& all) const {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    const int events = (i == 0 && !answer_ended_ ? POLLIN : 0) | (sockets_[i].at != kNone ? POLLOUT : 0);
    all.push_back({sockets_[i].socket.descriptor(), static_cast<short>(events), 0});
  }
  return kNetMaxSleepNs;
}

}  // namespace slip::transport
