#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "transport/net/tcp.hpp"

namespace slip {
namespace {
constexpr std::size_t kTurnSteps = 64;  // by one way; then the other lines get their turn
// Who sleeps is woken for this much of a large message at once, and not packet by packet.
constexpr std::size_t kWakeBytes = std::size_t{128} << 10, kWakeMinBytes = std::size_t{16} << 10;
}  // namespace

TcpReceiver::TcpReceiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes)
    : stripes_{sockets.size(), stripe_bytes} {
  peer_ = std::move(peer);
  for (Socket& socket : sockets) {
    socket.acknowledge_later();
    ways_.push_back({std::move(socket), 0, 0});
  }
  order_.reserve(kNetMaxRequests);
}

std::unique_ptr<NetMemory> TcpReceiver::register_memory(std::span<std::byte> bytes) {
  return std::make_unique<NetMemory>(bytes);
}

NetRequest* TcpReceiver::irecv(std::span<const NetPart> parts) {
  require_whole();
  if (parts.empty() || parts.size() > kNetMaxParts)
    throw Error(Code::kInvalidValue,
                fmt::format("a receive of {} parts: 1 to {} are possible", parts.size(), kNetMaxParts), {});
  for (const NetPart& part : parts) check_part(part);
  NetRequest* request = take_request(NetRequest::Kind::kReceive);
  if (!request) return nullptr;
  request->count = parts.size();
  std::copy(parts.begin(), parts.end(), request->parts.begin());
  const std::size_t index = index_of(request);
  posted_[index] = {request, parts.size(), 0};
  unfinished_ += parts.size();
  for (std::size_t part = 0; part < parts.size(); ++part) {
    if (ask_kept(request, part)) continue;
    posted_[index].open |= 1U << part;
    ++waiting_;
  }
  if (posted_[index].open != 0) order_.push_back(index);
  if (inbox_bytes() > 0) {
    for (Way& way : ways_) static_cast<void>(pull(way, Reading::kInboxOnly));
  }
  return request;
}

// The processor put the bytes there itself.
NetRequest* TcpReceiver::flush(std::span<const NetPart> parts) {
  require_whole();
  for (const NetPart& part : parts) check_part(part);
  NetRequest* request = take_request(NetRequest::Kind::kFlush);
  if (request) request->done = true;
  return request;
}

bool TcpReceiver::progress() {
  require_whole();
  if (unfinished_ == 0) return false;
  bool went = false;
  for (Way& way : ways_) went = pull(way, Reading::kSocket) || went;
  return went;
}

// Takes what has come by this way; false: nothing.
bool TcpReceiver::pull(Way& way, Reading reading) {
  const std::size_t begin_bytes = inbox_bytes();
  const std::uint64_t begin_at = way.at;
  const std::size_t begin_come = way.come;
  for (std::size_t step = 0; step < kTurnSteps; ++step) {
    if (way.at < arrived_) {
      if (!pull_data(way, reading)) break;
    } else if (!is_first(way) || (!take_header() && !read_into_inbox(reading))) {
      break;
    }
  }
  return way.at != begin_at || way.come != begin_come || inbox_bytes() != begin_bytes;
}

// Of the message that this way stands at. False: there is nothing more now.
bool TcpReceiver::pull_data(Way& way, Reading& reading) {
  const auto index = static_cast<std::size_t>(&way - ways_.data());
  const Arrival& into = arrival(way.at);
  const std::size_t total = stripes_.on(index, into.bytes);
  if (way.come == total) {
    pass(way);
    return true;
  }
  const Stripes::Piece piece = stripes_.piece(index, into.bytes, way.come);
  std::byte* to = into.to + piece.offset;
  std::size_t bytes = 0;
  if (is_first(way) && inbox_bytes() > 0) {
    bytes = std::min(piece.bytes, inbox_bytes());
    std::memcpy(to, inbox_.data() + inbox_begin_, bytes);
    inbox_begin_ += bytes;
  } else if (reading == Reading::kSocket) {
    // What follows the message comes with the same call.
    const bool with_next = is_first(way) && way.come + piece.bytes == total;
    const iovec pieces[2] = {{to, piece.bytes}, {inbox_.data(), inbox_.size()}};
    const std::size_t got = receive(way, std::span(pieces).first(with_next ? 2 : 1));
    bytes = std::min(got, piece.bytes);
    inbox_begin_ = with_next ? 0 : inbox_begin_;
    inbox_end_ = with_next ? got - bytes : inbox_end_;
    // Less than there was room for: the socket is empty, and need not be asked again.
    if (got < piece.bytes + (with_next ? inbox_.size() : 0)) reading = Reading::kInboxOnly;
    if (got == 0) return false;
  } else {
    return false;
  }
  way.come += bytes;
  if (way.come == total) pass(way);
  return true;
}

bool TcpReceiver::read_into_inbox(Reading& reading) {
  if (reading == Reading::kInboxOnly || inbox_bytes() >= sizeof(TcpHeader) || waiting_ == 0) return false;
  std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_bytes());
  inbox_end_ = inbox_bytes();
  inbox_begin_ = 0;
  const iovec room{inbox_.data() + inbox_end_, inbox_.size() - inbox_end_};
  const std::size_t got = receive(ways_[0], std::span(&room, 1));
  inbox_end_ += got;
  if (got < room.iov_len) reading = Reading::kInboxOnly;
  return got > 0;
}

std::size_t TcpReceiver::receive(Way& way, std::span<const iovec> pieces) {
  const Socket::Moved moved =
      pieces.size() == 1 ? way.socket.try_recv({static_cast<std::byte*>(pieces[0].iov_base), pieces[0].iov_len})
                         : way.socket.try_recv(pieces);
  if (moved.ended) lost(moved.error);
  return moved.bytes;
}

// False: it is not all there, nobody waits for it, or there are too many messages under way.
bool TcpReceiver::take_header() {
  if (inbox_bytes() < sizeof(TcpHeader) || waiting_ == 0 || arrived_ - finished_ == kMaxArrivals) return false;
  TcpHeader header;
  std::memcpy(&header, inbox_.data() + inbox_begin_, sizeof(header));
  if (header.mark != TcpHeader::kMark)
    fail(Error(Code::kIo, fmt::format("{} sent what is no message: both sides must be of one version", peer_.text()),
               {}));
  Arrival& into = arrival(arrived_);
  into = {};
  into.bytes = header.bytes;
  into.ways_left = ways_.size();
  if (!match(header, into)) keep(header, into);
  inbox_begin_ += sizeof(header);
  ++arrived_;
  return true;
}

bool TcpReceiver::match(const TcpHeader& header, Arrival& into) {
  for (std::size_t place = 0; place < order_.size(); ++place) {
    Posted& posted = posted_[order_[place]];
    if (!match_one(posted, header, into)) continue;
    if (posted.open == 0) order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(place));
    return true;
  }
  return false;
}

bool TcpReceiver::match_one(Posted& posted, const TcpHeader& header, Arrival& into) {
  for (std::size_t part = 0; part < posted.request->count; ++part) {
    const NetPart& one = posted.request->parts[part];
    if (!(posted.open >> part & 1U) || one.tag != header.tag) continue;
    check_room(header, one);
    posted.open &= ~(1U << part);
    --waiting_;
    into.to = one.data;
    into.request = posted.request;
    into.part = part;
    return true;
  }
  return false;
}

void TcpReceiver::check_room(const TcpHeader& header, const NetPart& part) {
  if (header.bytes <= part.bytes) return;
  const TcpTooLarge told{.tag = header.tag, .bytes = header.bytes, .room = part.bytes};
  static_cast<void>(ways_[0].socket.try_send(std::as_bytes(std::span(&told, 1))));
  fail(
      Error(Code::kInvalidValue,
            fmt::format("{} sent {} bytes with tag {}, and the receive has room for {}; both sides must agree on sizes",
                        peer_.text(), header.bytes, header.tag, part.bytes),
            {}));
}

// Somebody waits for another tag, which is behind this message.
void TcpReceiver::keep(const TcpHeader& header, Arrival& into) {
  if (header.bytes > kTcpMaxKept - kept_bytes_)
    fail(
        Error(Code::kOutOfMemory,
              fmt::format("{} sent {} bytes with tag {}, for which there is no receive, and {} bytes of other messages "
                          "wait already: at most {} are kept; post receives in the order of the sends",
                          peer_.text(), header.bytes, header.tag, kept_bytes_, kTcpMaxKept),
              {}));
  kept_bytes_ += header.bytes;
  Kept& kept = kept_.emplace_back();
  kept.header = header;
  kept.bytes.resize(header.bytes);
  into.to = kept.bytes.data();
  into.kept = &kept;
}

// True: a message that was kept is for this part.
bool TcpReceiver::ask_kept(NetRequest* request, std::size_t part) {
  for (Kept& kept : kept_) {
    if (kept.request || kept.header.tag != request->parts[part].tag) continue;
    check_room(kept.header, request->parts[part]);
    kept.request = request;
    kept.part = part;
    if (kept.whole) hand_over(kept);
    return true;
  }
  return false;
}

void TcpReceiver::hand_over(Kept& kept) {
  std::copy(kept.bytes.begin(), kept.bytes.end(), kept.request->parts[kept.part].data);
  finish_part(kept.request, kept.part, kept.bytes.size());
  kept_bytes_ -= kept.bytes.size();
  kept_.remove_if([&](const Kept& one) { return &one == &kept; });
}

void TcpReceiver::pass(Way& way) {
  Arrival& one = arrival(way.at);
  ++way.at;
  way.come = 0;
  if (--one.ways_left > 0) return;
  if (one.kept) {
    one.kept->whole = true;
    if (one.kept->request) hand_over(*one.kept);
  } else {
    finish_part(one.request, one.part, one.bytes);
  }
  while (finished_ < arrived_ && arrival(finished_).ways_left == 0) ++finished_;
}

void TcpReceiver::finish_part(NetRequest* request, std::size_t part, std::size_t bytes) {
  request->moved[part] = bytes;
  --unfinished_;
  if (--posted_[index_of(request)].unfinished == 0) request->done = true;
}

void TcpReceiver::lost(int error) {
  fail(Error(Code::kRankLost,
             fmt::format("{} is gone: it closed the connection while {} of its messages were expected{}{}",
                         peer_.text(), unfinished_, error ? ": " : "", error ? std::strerror(error) : ""),
             {}));
}

std::size_t TcpReceiver::missing(std::size_t way) const {
  const Way& one = ways_[way];
  return one.at < arrived_ ? stripes_.on(way, arrival(one.at).bytes) - one.come : 0;
}

void TcpReceiver::watch(std::vector<pollfd>& all) const {
  for (std::size_t i = 0; i < ways_.size(); ++i) {
    const Way& way = ways_[i];
    if (way.at == arrived_ && (i > 0 || waiting_ == 0)) continue;
    const std::size_t left = missing(i), wakes_at = left < kWakeMinBytes ? 1 : std::min(left, kWakeBytes);
    if (wakes_at != way.wakes_at) way.socket.wake_at(way.wakes_at = wakes_at);
    all.push_back({way.socket.descriptor(), POLLIN, 0});
  }
}

}  // namespace slip
