#include <algorithm>
#include <cstring>

#include "base/fail.hpp"
#include "transport/net/tcp.hpp"

namespace slip::transport {
namespace {
constexpr std::size_t kTurnSteps = 64;  // reads from one socket in one call; then other connections are served
// While a large message arrives, the kernel wakes a thread that sleeps in poll after this many bytes, not for each
// packet.
constexpr std::size_t kWakeBytes = std::size_t{128} << 10, kWakeMinBytes = std::size_t{16} << 10;
}  // namespace

TcpReceiver::TcpReceiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes)
    : stripes_{sockets.size(), stripe_bytes} {
  peer_ = std::move(peer);
  for (Socket& socket : sockets) {
    acknowledge_later(socket);
    sockets_.push_back({std::move(socket), 0, 0});
  }
}

NetRequest* TcpReceiver::start(std::span<std::byte> bytes, bool) {
  require_no_error();
  NetRequest* const request = take_request(bytes);
  if (request && inbox_bytes() > 0) {
    for (Incoming& in : sockets_) static_cast<void>(pull(in, Reading::kInboxOnly));
  }
  return request;
}

bool TcpReceiver::progress() {
  require_no_error();
  if (finished_ == begun_) return false;
  bool went = false;
  for (Incoming& in : sockets_) went = pull(in, Reading::kSocket) || went;
  return went;
}

// Takes the bytes that have arrived on this socket. False: there were none.
bool TcpReceiver::pull(Incoming& in, Reading reading) {
  const std::size_t begin_bytes = inbox_bytes();
  const std::uint64_t begin_at = in.at;
  const std::size_t begin_received = in.received;
  for (std::size_t step = 0; step < kTurnSteps; ++step) {
    if (in.at < arrived_) {
      if (!pull_data(in, reading)) break;
    } else if (!is_first(in) || (!take_header() && !read_into_inbox(reading))) {
      break;
    }
  }
  return in.at != begin_at || in.received != begin_received || inbox_bytes() != begin_bytes;
}

// Takes bytes of the socket's current message. False: no more have arrived.
bool TcpReceiver::pull_data(Incoming& in, Reading& reading) {
  const auto index = static_cast<std::size_t>(&in - sockets_.data());
  const std::size_t message_bytes = arrival(in.at).bytes, total = stripes_.on(index, message_bytes);
  if (in.received == total) {
    pass(in);
    return true;
  }
  const Stripes::Piece piece = stripes_.piece(index, message_bytes, in.received);
  std::byte* to = request(in.at).bytes.data() + piece.offset;
  std::size_t bytes = 0;
  if (is_first(in) && inbox_bytes() > 0) {
    bytes = std::min(piece.bytes, inbox_bytes());
    std::memcpy(to, inbox_.data() + inbox_begin_, bytes);
    inbox_begin_ += bytes;
  } else if (reading == Reading::kSocket) {
    // The same system call reads the bytes after the message into the inbox.
    const bool with_next = is_first(in) && in.received + piece.bytes == total;
    const iovec pieces[2] = {{to, piece.bytes}, {inbox_.data(), inbox_.size()}};
    const std::size_t got = receive(in, std::span(pieces).first(with_next ? 2 : 1));
    bytes = std::min(got, piece.bytes);
    inbox_begin_ = with_next ? 0 : inbox_begin_;
    inbox_end_ = with_next ? got - bytes : inbox_end_;
    // The call returned fewer bytes than it could have, so the socket is empty: do not read again.
    if (got < piece.bytes + (with_next ? inbox_.size() : 0)) reading = Reading::kInboxOnly;
    if (got == 0) return false;
  } else {
    return false;
  }
  in.received += bytes;
  if (in.received == total) pass(in);
  return true;
}

bool TcpReceiver::read_into_inbox(Reading& reading) {
  if (reading == Reading::kInboxOnly || inbox_bytes() >= sizeof(TcpHeader) || arrived_ == begun_) return false;
  std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_bytes());
  inbox_end_ = inbox_bytes();
  inbox_begin_ = 0;
  const iovec room{inbox_.data() + inbox_end_, inbox_.size() - inbox_end_};
  const std::size_t got = receive(sockets_[0], std::span(&room, 1));
  inbox_end_ += got;
  if (got < room.iov_len) reading = Reading::kInboxOnly;
  return got > 0;
}

std::size_t TcpReceiver::receive(Incoming& in, std::span<const iovec> pieces) {
  const Socket::Moved moved = pieces.size() == 1
                                  ? in.socket.try_recv({static_cast<std::byte*>(pieces[0].iov_base), pieces[0].iov_len})
                                  : in.socket.try_recv(pieces);
  if (moved.ended) fail_lost(moved.error);
  return moved.bytes;
}

// False: the header is not complete, or no receive is posted.
bool TcpReceiver::take_header() {
  if (inbox_bytes() < sizeof(TcpHeader) || arrived_ == begun_) return false;
  TcpHeader header;
  std::memcpy(&header, inbox_.data() + inbox_begin_, sizeof(header));
  if (header.mark != TcpHeader::kMark)
    fail(
        base::make_error(Code::kIo, {}, "{} sent what is no message: both sides must be of one version", peer_.text()));
  const std::size_t room = request(arrived_).bytes.size();
  if (header.bytes > room) {
    const TcpTooLarge refusal{.bytes = header.bytes, .room = room};
    static_cast<void>(sockets_[0].socket.try_send(std::as_bytes(std::span(&refusal, 1))));
    fail(base::make_error(Code::kInvalidValue, {},
                          "{} sent {} bytes, and the receive has room for {}; both sides must agree on sizes",
                          peer_.text(), header.bytes, room));
  }
  arrival(arrived_) = {header.bytes, sockets_.size()};
  inbox_begin_ += sizeof(header);
  ++arrived_;
  return true;
}

// Every socket passes every message in order, so the messages are complete in order, too.
void TcpReceiver::pass(Incoming& in) {
  const std::uint64_t number = in.at++;
  in.received = 0;
  if (--arrival(number).sockets_left > 0) return;
  request(number).moved = arrival(number).bytes;
  request(number).done = true;
  ++finished_;
}

void TcpReceiver::fail_lost(int error) {
  fail(base::make_error(Code::kRankLost, {},
                        "{} is gone: it closed the connection while {} of its messages were expected{}", peer_.text(),
                        begun_ - finished_, reason_text(error)));
}

void TcpReceiver::watch(std::vector<pollfd>& all) const {
  for (std::size_t i = 0; i < sockets_.size(); ++i) {
    const Incoming& in = sockets_[i];
    if (in.at == arrived_ && (i > 0 || arrived_ == begun_)) continue;
    const std::size_t left =
        in.at < arrived_ ? stripes_.on(i, arrivals_[in.at % kNetMaxRequests].bytes) - in.received : 0;
    const std::size_t wakes_at = left < kWakeMinBytes ? 1 : std::min(left, kWakeBytes);
    if (wakes_at != in.wakes_at) wake_at(in.socket, in.wakes_at = wakes_at);
    all.push_back({in.socket.descriptor(), POLLIN, 0});
  }
}

}  // namespace slip::transport
