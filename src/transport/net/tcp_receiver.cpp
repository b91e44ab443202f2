#include <algorithm>
#include <array>
#include <cstring>
#include <list>

#include "base/fail.hpp"
#include "transport/net/tcp.hpp"

namespace slip::transport {
namespace {
constexpr std::size_t kMaxReads = 64;  // from one socket in one call; then other connections are served
// While a large message arrives, the kernel wakes a thread that sleeps in poll after this many bytes, not for each
// packet.
constexpr std::size_t kWakeBytes = std::size_t{128} << 10, kWakeMinBytes = std::size_t{16} << 10;

// If a message has no matching receive yet, but receives with other tags are posted, the receiver buffers it. This is
// the limit of the buffered bytes of one connection. If no receive is posted, the receiver reads nothing, and TCP's
// flow control stops the sender.
constexpr std::size_t kTcpMaxUnexpectedBytes = std::size_t{256} << 20;

class TcpReceiver final : public NetReceiver {
 public:
  TcpReceiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes)
      : stripes_{sockets.size(), stripe_bytes} {
    peer_ = std::move(peer);
    for (Socket& socket : sockets) {
      acknowledge_later(socket);
      sockets_.push_back({std::move(socket), 0, 0});
    }
    order_.reserve(kNetMaxRequests);
  }

  NetRequest* irecv(std::span<const NetPart> parts) override {
    NetRequest* request = take_receive(parts);
    if (!request) return nullptr;
    const std::size_t index = request->index;
    posted_[index] = {request, parts.size(), 0};
    unfinished_ += parts.size();
    for (std::size_t part = 0; part < parts.size(); ++part) {
      if (match_unexpected(request, part)) continue;
      posted_[index].open |= 1U << part;
      ++waiting_;
    }
    if (posted_[index].open != 0) order_.push_back(index);
    if (inbox_bytes() > 0) {
      for (Incoming& in : sockets_) static_cast<void>(pull(in, Reading::kInboxOnly));
    }
    return request;
  }

  bool progress() override {
    require_no_error();
    if (unfinished_ == 0) return false;
    bool went = false;
    for (Incoming& in : sockets_) went = pull(in, Reading::kSocket) || went;
    return went;
  }

  std::int64_t watch(std::vector<pollfd>& all) const override {
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      const Incoming& in = sockets_[i];
      if (in.at == arrived_ && (i > 0 || waiting_ == 0)) continue;
      const std::size_t left = missing(i), wakes_at = left < kWakeMinBytes ? 1 : std::min(left, kWakeBytes);
      if (wakes_at != in.wakes_at) wake_at(in.socket, in.wakes_at = wakes_at);
      all.push_back({in.socket.descriptor(), POLLIN, 0});
    }
    return kNetMaxSleepNs;
  }

 private:
  static constexpr std::size_t kInboxBytes = std::size_t{16} << 10;
  static constexpr std::size_t kMaxArrivals = 64;
  struct Unexpected {
    TcpHeader header;
    std::vector<std::byte> bytes;
    NetRequest* request = nullptr;  // the matching receive, if it was posted while the message was still arriving
    std::size_t part = 0;
    bool whole = false;  // all bytes have arrived
  };
  // A message whose header has arrived, and the destination of its bytes.
  struct Arrival {
    std::byte* to = nullptr;
    std::size_t bytes = 0, sockets_left = 0;
    NetRequest* request = nullptr;
    std::size_t part = 0;
    Unexpected* unexpected = nullptr;
  };
  struct Incoming {
    Socket socket;
    std::uint64_t at = 0;              // number of the arrival whose bytes this socket receives
    std::size_t received = 0;          // bytes of that message that this socket has received
    mutable std::size_t wakes_at = 1;  // the socket's present SO_RCVLOWAT
  };
  struct Posted {
    NetRequest* request = nullptr;
    std::size_t unfinished = 0;  // parts that are not complete
    std::uint32_t open = 0;      // bit i: part i has no message yet
  };

  enum class Reading { kSocket, kInboxOnly };  // kInboxOnly: makes no system call
  Arrival& arrival(std::uint64_t number) { return arrivals_[number % kMaxArrivals]; }
  const Arrival& arrival(std::uint64_t number) const { return arrivals_[number % kMaxArrivals]; }
  std::size_t inbox_bytes() const { return inbox_end_ - inbox_begin_; }
  bool is_first(const Incoming& in) const { return &in == sockets_.data(); }

  // Takes the bytes that have arrived on this socket. False: there were none.
  bool pull(Incoming& in, Reading reading) {
    const std::size_t begin_bytes = inbox_bytes();
    const std::uint64_t begin_at = in.at;
    const std::size_t begin_received = in.received;
    for (std::size_t step = 0; step < kMaxReads; ++step) {
      if (in.at < arrived_) {
        if (!pull_data(in, reading)) break;
      } else if (!is_first(in) || (!take_header() && !read_into_inbox(reading))) {
        break;
      }
    }
    return in.at != begin_at || in.received != begin_received || inbox_bytes() != begin_bytes;
  }

  // Takes bytes of the socket's current message. False: no more have arrived.
  bool pull_data(Incoming& in, Reading& reading) {
    const auto index = static_cast<std::size_t>(&in - sockets_.data());
    const Arrival& into = arrival(in.at);
    const std::size_t total = stripes_.on(index, into.bytes);
    if (in.received == total) {
      pass(in);
      return true;
    }
    const Stripes::Piece piece = stripes_.piece(index, into.bytes, in.received);
    std::byte* to = into.to + piece.offset;
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

  bool read_into_inbox(Reading& reading) {
    if (reading == Reading::kInboxOnly || inbox_bytes() >= sizeof(TcpHeader) || waiting_ == 0) return false;
    std::memmove(inbox_.data(), inbox_.data() + inbox_begin_, inbox_bytes());
    inbox_end_ = inbox_bytes();
    inbox_begin_ = 0;
    const iovec room{inbox_.data() + inbox_end_, inbox_.size() - inbox_end_};
    const std::size_t got = receive(sockets_[0], std::span(&room, 1));
    inbox_end_ += got;
    if (got < room.iov_len) reading = Reading::kInboxOnly;
    return got > 0;
  }

  std::size_t receive(Incoming& in, std::span<const iovec> pieces) {
    const Socket::Moved moved =
        pieces.size() == 1 ? in.socket.try_recv({static_cast<std::byte*>(pieces[0].iov_base), pieces[0].iov_len})
                           : in.socket.try_recv(pieces);
    if (moved.ended) fail_lost(moved.error);
    return moved.bytes;
  }

  // False: the header is not complete, no receive is posted, or too many messages are arriving.
  bool take_header() {
    if (inbox_bytes() < sizeof(TcpHeader) || waiting_ == 0 || arrived_ - finished_ == kMaxArrivals) return false;
    TcpHeader header;
    std::memcpy(&header, inbox_.data() + inbox_begin_, sizeof(header));
    if (header.mark != TcpHeader::kMark)
      fail(ErrorCode::kIo,
           "{} sent bytes that are no message header (mark {:#x}): both sides must run the same version", peer_.text(),
           header.mark);
    Arrival& into = arrival(arrived_);
    into = {};
    into.bytes = header.bytes;
    into.sockets_left = sockets_.size();
    if (!match(header, into)) buffer_unexpected(header, into);
    inbox_begin_ += sizeof(header);
    ++arrived_;
    return true;
  }

  bool match(const TcpHeader& header, Arrival& into) {
    for (std::size_t place = 0; place < order_.size(); ++place) {
      Posted& posted = posted_[order_[place]];
      for (std::size_t part = 0; part < posted.request->count; ++part) {
        const NetPart& one = posted.request->parts[part];
        if (!(posted.open >> part & 1U) || one.tag != header.tag) continue;
        check_room(header, one);
        posted.open &= ~(1U << part);
        --waiting_;
        into.to = one.data;
        into.request = posted.request;
        into.part = part;
        if (posted.open == 0) order_.erase(order_.begin() + static_cast<std::ptrdiff_t>(place));
        return true;
      }
    }
    return false;
  }

  void check_room(const TcpHeader& header, const NetPart& part) {
    if (header.bytes <= part.bytes) return;
    const TcpTooLarge refusal{.tag = header.tag, .bytes = header.bytes, .room = part.bytes};
    static_cast<void>(sockets_[0].socket.try_send(std::as_bytes(std::span(&refusal, 1))));
    fail(ErrorCode::kInvalidValue,
         "{} sent {} bytes with tag {}, and the receive has room for {}; both sides must agree on sizes", peer_.text(),
         header.bytes, header.tag, part.bytes);
  }

  // Called when the posted receives have other tags: their messages come after this one, so this one must be read
  // first.
  void buffer_unexpected(const TcpHeader& header, Arrival& into) {
    if (header.bytes > kTcpMaxUnexpectedBytes - unexpected_bytes_)
      fail(ErrorCode::kOutOfMemory,
           "{} sent {} bytes with tag {}, for which there is no receive, and {} bytes of other messages "
           "wait already: at most {} are kept; post receives in the order of the sends",
           peer_.text(), header.bytes, header.tag, unexpected_bytes_, kTcpMaxUnexpectedBytes);
    unexpected_bytes_ += header.bytes;
    Unexpected& unexpected = unexpected_.emplace_back();
    unexpected.header = header;
    unexpected.bytes.resize(header.bytes);
    into.to = unexpected.bytes.data();
    into.unexpected = &unexpected;
  }

  // True: a buffered message matches this part.
  bool match_unexpected(NetRequest* request, std::size_t part) {
    for (Unexpected& unexpected : unexpected_) {
      if (unexpected.request || unexpected.header.tag != request->parts[part].tag) continue;
      check_room(unexpected.header, request->parts[part]);
      unexpected.request = request;
      unexpected.part = part;
      if (unexpected.whole) deliver(unexpected);
      return true;
    }
    return false;
  }

  void deliver(Unexpected& unexpected) {
    std::copy(unexpected.bytes.begin(), unexpected.bytes.end(), unexpected.request->parts[unexpected.part].data);
    finish_part(unexpected.request, unexpected.part, unexpected.bytes.size());
    unexpected_bytes_ -= unexpected.bytes.size();
    unexpected_.remove_if([&](const Unexpected& one) { return &one == &unexpected; });
  }

  void pass(Incoming& in) {
    Arrival& one = arrival(in.at);
    ++in.at;
    in.received = 0;
    if (--one.sockets_left > 0) return;
    if (one.unexpected) {
      one.unexpected->whole = true;
      if (one.unexpected->request) deliver(*one.unexpected);
    } else {
      finish_part(one.request, one.part, one.bytes);
    }
    while (finished_ < arrived_ && arrival(finished_).sockets_left == 0) ++finished_;
  }

  void finish_part(NetRequest* request, std::size_t part, std::size_t bytes) {
    request->moved[part] = bytes;
    --unfinished_;
    if (--posted_[request->index].unfinished == 0) request->done = true;
  }

  [[noreturn]] void fail_lost(int error) {
    fail(ErrorCode::kRankLost, "{} is gone: it closed the connection while {} of its messages were expected{}",
         peer_.text(), unfinished_, reason_text(error));
  }

  // Bytes of its current message that socket `index` has not received yet.
  std::size_t missing(std::size_t index) const {
    const Incoming& one = sockets_[index];
    return one.at < arrived_ ? stripes_.on(index, arrival(one.at).bytes) - one.received : 0;
  }

  Stripes stripes_;
  std::vector<Incoming> sockets_;
  std::array<Arrival, kMaxArrivals> arrivals_;
  std::uint64_t arrived_ = 0;   // number of headers received so far
  std::uint64_t finished_ = 0;  // all arrivals with lower numbers are complete
  // Bytes received from the first socket, of which [inbox_begin_, inbox_end_) are not processed yet.
  std::vector<std::byte> inbox_ = std::vector<std::byte>(kInboxBytes);
  std::size_t inbox_begin_ = 0, inbox_end_ = 0;
  // Indices of the requests with parts that have no message yet, the oldest first. Reserved: kNetMaxRequests.
  std::vector<std::size_t> order_;
  std::vector<Posted> posted_{kNetMaxRequests};
  std::size_t waiting_ = 0;           // posted parts that have no message yet
  std::size_t unfinished_ = 0;        // parts that are not complete
  std::list<Unexpected> unexpected_;  // buffered messages that had no matching receive when their header arrived
  std::size_t unexpected_bytes_ = 0;
};

}  // namespace

std::unique_ptr<NetReceiver> make_tcp_receiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes) {
  return std::make_unique<TcpReceiver>(std::move(peer), std::move(sockets), stripe_bytes);
}

}  // namespace slip::transport
