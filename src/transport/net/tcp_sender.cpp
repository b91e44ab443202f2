#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "transport/net/tcp.hpp"

namespace slip {
namespace {
constexpr std::size_t kMaxPieces = 32;                    // of one system call
constexpr std::size_t kTurnBytes = std::size_t{8} << 20;  // by one way; then the other lines get their turn
constexpr std::size_t kJoinedBytes = 2048;

// A list of places costs the kernel more than a few small ones cost to be copied together.
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

TcpSender::TcpSender(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes, std::size_t zero_copy_from)
    : stripes_{sockets.size(), stripe_bytes}, zero_copy_from_(zero_copy_from) {
  peer_ = std::move(peer);
  for (Socket& socket : sockets) {
    ways_.push_back({std::move(socket), kNone, 0, false, {}});
    if (zero_copy_from_ > 0) ways_.back().zero_copy.enable(ways_.back().socket.descriptor());
  }
}

TcpSender::~TcpSender() = default;

std::unique_ptr<NetMemory> TcpSender::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<NetMemory>(bytes);
}

NetRequest* TcpSender::isend(const NetPart& part, bool more) {
  require_whole();
  check_part(part);
  NetRequest* request = take_request(NetRequest::Kind::kSend);
  if (!request) return nullptr;
  request->count = 1;
  request->parts[0] = part;
  const std::size_t index = index_of(request);
  Message& message = messages_[index];
  message = {.header = {.bytes = part.bytes, .tag = part.tag}, .ways_left = ways_.size()};
  if (last_ != kNone) messages_[last_].next = index;
  last_ = index;
  ++under_way_;
  for (Way& way : ways_) {
    if (way.at == kNone) {  // else it is full, or held
      way.at = index;
      if (bytes_by(way, index) == 0) pass(way);
      else way.held = true;
    }
    if (!more && std::exchange(way.held, false)) static_cast<void>(push(way));
  }
  return request;
}

bool TcpSender::progress() {
  require_whole();
  bool went = false;
  for (Way& way : ways_) {
    went = push(way) || went;
    went = settle_notices(way) || went;
  }
  if (!went) look_back();
  return went;
}

std::size_t TcpSender::bytes_by(const Way& way, std::size_t message) const {
  const auto index = static_cast<std::size_t>(&way - ways_.data());
  return head_bytes(way) + stripes_.on(index, messages_[message].header.bytes);
}

// Sends what goes by this way; false: nothing.
bool TcpSender::push(Way& way) {
  std::size_t turn = 0;
  while (way.at != kNone && turn < kTurnBytes) {
    std::array<iovec, kMaxPieces> pieces;
    bool zero_copy = false;
    const std::size_t count = gather(way, pieces, zero_copy);
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < count; ++i) wanted += pieces[i].iov_len;
    const std::span<const iovec> all = std::span(pieces).first(count);
    Socket::Moved moved = count > 1 && wanted <= kJoinedBytes && !zero_copy
                              ? send_joined(way.socket, all)
                              : way.socket.try_send(all, zero_copy ? MSG_ZEROCOPY : 0);
    if (zero_copy && moved.error == ENOBUFS) {  // too many pages are pinned: this time it is copied
      zero_copy = false;
      moved = way.socket.try_send(all, 0);
    }
    if (moved.ended) lost(moved.error);
    if (zero_copy && moved.bytes > 0) {
      way.zero_copy.sent(way.at);
      ++messages_[way.at].notices_left;
    }
    advance(way, moved.bytes);
    turn += moved.bytes;
    if (moved.bytes < wanted) break;  // the socket is full: no second call to hear so
  }
  return turn > 0;
}

// Headers and data of as many messages as one call takes; of one only where its pages are not copied.
std::size_t TcpSender::gather(const Way& way, std::span<iovec> pieces, bool& zero_copy) const {
  const auto index = static_cast<std::size_t>(&way - ways_.data());
  const std::size_t head = head_bytes(way);
  std::size_t count = 0, gone = way.gone;
  for (std::size_t at = way.at; at != kNone && count + 2 <= pieces.size(); at = messages_[at].next, gone = 0) {
    const TcpHeader& header = messages_[at].header;
    const bool pinned = zero_copy_from_ > 0 && header.bytes >= zero_copy_from_ && way.zero_copy.possible();
    if (pinned && count > 0) break;
    if (gone < head) {
      auto* from = reinterpret_cast<std::byte*>(const_cast<TcpHeader*>(&header));
      pieces[count++] = {from + gone, head - gone};
      gone = head;
    }
    const std::size_t end = head + stripes_.on(index, header.bytes);
    while (gone < end && count < pieces.size()) {
      const Stripes::Piece piece = stripes_.piece(index, header.bytes, gone - head);
      pieces[count++] = {requests_[at].parts[0].data + piece.offset, piece.bytes};
      gone += piece.bytes;
    }
    zero_copy = pinned;
    if (pinned || gone < end) break;
  }
  return count;
}

void TcpSender::advance(Way& way, std::size_t bytes) {
  for (;;) {
    const std::size_t rest = bytes_by(way, way.at) - way.gone;
    if (bytes < rest) {
      way.gone += bytes;
      return;
    }
    bytes -= rest;
    pass(way);
    if (way.at == kNone) return;
  }
}

// On to the next message that has something for this way. Every way passes every message: its request must not be
// used again while a way still stands before it.
void TcpSender::pass(Way& way) {
  do {
    const std::size_t message = way.at;
    way.at = messages_[message].next;
    way.gone = 0;
    --messages_[message].ways_left;
    finish_if_done(message);
  } while (way.at != kNone && bytes_by(way, way.at) == 0);
}

void TcpSender::finish_if_done(std::size_t message) {
  if (messages_[message].ways_left > 0) return;
  if (last_ == message) last_ = kNone;
  if (messages_[message].notices_left > 0) return;
  requests_[message].done = true;
  --under_way_;
}

bool TcpSender::settle_notices(Way& way) {
  return way.zero_copy.outstanding() && way.zero_copy.settle(way.socket.descriptor(), [this](std::size_t message) {
    --messages_[message].notices_left;
    finish_if_done(message);
  });
}

// A receiver that has no room says so and reads no further. That it left in peace matters only to what is under way.
void TcpSender::look_back() {
  const Socket::Moved moved = ways_[0].socket.try_recv(std::span(answer_).subspan(answered_));
  answered_ += moved.bytes;
  if (answered_ == answer_.size()) {
    TcpTooLarge told;
    std::memcpy(&told, answer_.data(), sizeof(told));
    fail(Error(Code::kInvalidValue,
               fmt::format("{} has room for {} bytes only: {} bytes with tag {} were sent; both sides must agree on "
                           "sizes",
                           peer_.text(), told.room, told.bytes, told.tag),
               {}));
  }
  if (!moved.ended || under_way_ == 0) return;
  fail(Error(Code::kRankLost,
             fmt::format("{} closed the connection with {} messages not yet sent{}{}", peer_.text(), under_way_,
                         moved.error ? ": " : "", moved.error ? std::strerror(moved.error) : ""),
             {}));
}

void TcpSender::lost(int error) {
  look_back();  // it may have said why
  fail(Error(Code::kRankLost, fmt::format("{} is gone: sending failed: {}", peer_.text(), std::strerror(error)), {}));
}

void TcpSender::watch(std::vector<pollfd>& all) const {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    const int events = (i == 0 ? POLLIN : 0) | (ways_[i].at != kNone ? POLLOUT : 0);
    all.push_back({ways_[i].socket.descriptor(), static_cast<short>(events), 0});
  }
}

}  // namespace slip
