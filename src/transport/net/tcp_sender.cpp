#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/fail.hpp"
#include "transport/net/tcp.hpp"

namespace slip::transport {
namespace {
// Size of the send buffer between ranks of one host: small, so that the bytes are still in the CPU caches when the peer
// receives them. Measured: two ranks exchanged 2 MiB over plain sockets in 545 to 580 us with the kernel's choice of 4
// MiB, and in 420 to 460 us with this size.
constexpr int kHostSendBufferBytes = 512 << 10;

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

// ZeroCopy: keeps track of the messages of one socket whose memory the kernel still reads after a send with
// MSG_ZEROCOPY. The kernel numbers such sends from 0 and reports the finished ones on the socket's error queue. Not
// thread-safe.
class ZeroCopy {
 public:
  // If the kernel does not support MSG_ZEROCOPY, possible() stays false.
  void enable(int descriptor) {
    const int on = 1;
    enabled_ = ::setsockopt(descriptor, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)) == 0;
  }
  // Whether the next send may use MSG_ZEROCOPY: it is enabled, and messages_ has room.
  bool possible() const { return enabled_ && next_ - oldest_ < kMax; }
  bool outstanding() const { return outstanding_ > 0; }

  // The kernel has accepted a send of this message with MSG_ZEROCOPY.
  void sent(std::size_t message) {
    messages_[next_++ % kMax] = message;
    ++outstanding_;
  }

  // Reads the kernel's notifications and calls released(message) for each finished send. False: no send has finished.
  template <class Released>
  bool settle(int descriptor, const Released& released) {
    bool any = false;
    while (outstanding_ > 0) {
      alignas(cmsghdr) char control[128];
      msghdr header{};
      header.msg_control = control;
      header.msg_controllen = sizeof(control);
      if (::recvmsg(descriptor, &header, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
      for (cmsghdr* one = CMSG_FIRSTHDR(&header); one; one = CMSG_NXTHDR(&header, one)) {
        const auto* notice = reinterpret_cast<const sock_extended_err*>(CMSG_DATA(one));
        if (!is_notice(*one) || notice->ee_origin != SO_EE_ORIGIN_ZEROCOPY || notice->ee_errno != 0) continue;
        for (std::uint32_t id = notice->ee_info; id != notice->ee_data + 1; ++id) {
          released(std::exchange(messages_[id % kMax], kReleased));
          --outstanding_;
          any = true;
        }
        // Notifications may come out of order, so the oldest send may finish last.
        while (oldest_ != next_ && messages_[oldest_ % kMax] == kReleased) ++oldest_;
      }
    }
    return any;
  }

 private:
  // A power of two, so that id % kMax stays continuous when the 32-bit id wraps around.
  static constexpr std::size_t kMax = 1024;
  static constexpr std::size_t kReleased = static_cast<std::size_t>(-1);
  static bool is_notice(const cmsghdr& header) {
    return (header.cmsg_level == SOL_IP && header.cmsg_type == IP_RECVERR) ||
           (header.cmsg_level == SOL_IPV6 && header.cmsg_type == IPV6_RECVERR);
  }

  bool enabled_ = false;
  std::uint32_t next_ = 0;    // number of the next send, in the kernel's numbering
  std::uint32_t oldest_ = 0;  // all sends with lower numbers have finished
  std::size_t outstanding_ = 0;
  std::array<std::size_t, kMax> messages_{};  // by number % kMax: the message, or kReleased
};

class TcpSender final : public NetSender {
 public:
  TcpSender(Greeted greeted, const NetOptions& options, bool stays_on_host)
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

  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool more) override {
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

  bool progress() override {
    require_no_error();
    bool moved_some = false;
    for (Outgoing& out : sockets_) {
      moved_some = push(out) || moved_some;
      moved_some = settle_notices(out) || moved_some;
    }
    if (!moved_some) read_answer();
    return moved_some;
  }

  // The failure detector uses one interface only, so it does not notice that a path over another interface is cut.
  void check() override {
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
  std::int64_t watch(std::vector<pollfd>& all) const override {
    for (std::size_t i = 0; i < sockets_.size(); ++i) {
      const int events = (i == 0 && !answer_ended_ ? POLLIN : 0) | (sockets_[i].at != kNone ? POLLOUT : 0);
      all.push_back({sockets_[i].socket.descriptor(), static_cast<short>(events), 0});
    }
    return kNetMaxSleepNs;
  }

 private:
  static constexpr std::size_t kNone = kNetMaxRequests;
  // A message that is being sent. It has the same index as its request.
  struct OutMessage {
    TcpHeader header;
    std::size_t next = kNone;
    std::size_t sockets_left = 0;    // sockets that have not yet moved on to the next message
    std::uint32_t notices_left = 0;  // MSG_ZEROCOPY notifications to come: the kernel may read the bytes until then
  };
  struct Outgoing {
    Socket socket;
    std::size_t at = kNone;  // index of the message that this socket sends
    std::size_t sent = 0;    // bytes of that message that this socket has sent, including the header
    bool held = false;       // isend() has not begun to send the message: it waits for the next, to send both at once
    ZeroCopy zero_copy;
    std::string path;                   // RailPath::text(); empty: not bound to an interface
    std::string interface;              // of the path
    std::int64_t unanswered_since = 0;  // see unanswered_ns()
  };

  std::size_t head_bytes(const Outgoing& out) const { return &out == sockets_.data() ? sizeof(TcpHeader) : 0; }
  // Bytes of the message that this socket sends, including the header.
  std::size_t bytes_by(const Outgoing& out, std::size_t message) const {
    const auto index = static_cast<std::size_t>(&out - sockets_.data());
    return head_bytes(out) + stripes_.on(index, messages_[message].header.bytes);
  }

  // Sends over this socket as many bytes as the kernel accepts without blocking. False: none.
  bool push(Outgoing& out) {
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

  // Fills `pieces` with the headers and data of as many messages as one system call can send. A zero-copy message is
  // sent alone.
  std::size_t gather(const Outgoing& out, std::span<iovec> pieces, bool& zero_copy) const {
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

  void advance(Outgoing& out, std::size_t bytes) {
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

  // Moves the socket on to the next message that has bytes for it. Every socket passes every message, so that no
  // request is reused before all sockets have passed its message.
  void pass(Outgoing& out) {
    do {
      const std::size_t message = out.at;
      out.at = messages_[message].next;
      out.sent = 0;
      --messages_[message].sockets_left;
      finish_if_done(message);
    } while (out.at != kNone && bytes_by(out, out.at) == 0);
  }

  void finish_if_done(std::size_t message) {
    if (messages_[message].sockets_left > 0) return;
    if (last_ == message) last_ = kNone;
    if (messages_[message].notices_left > 0) return;
    requests_[message].done = true;
  }

  bool settle_notices(Outgoing& out) {
    return out.zero_copy.outstanding() && out.zero_copy.settle(out.socket.descriptor(), [this](std::size_t message) {
      --messages_[message].notices_left;
      finish_if_done(message);
    });
  }

  // A receiver whose receive is too small sends TcpTooLarge and stops reading. A receiver that has closed the
  // connection is an error only while messages are not sent yet. A message that waits only for its zero-copy
  // notifications is sent: the notifications come although the receiver has closed, and maybe later than its FIN.
  void read_answer() {
    const Socket::Moved moved = sockets_[0].socket.try_recv(std::span(answer_).subspan(answer_bytes_));
    answer_bytes_ += moved.bytes;
    if (answer_bytes_ == answer_.size()) {
      TcpTooLarge refusal;
      std::memcpy(&refusal, answer_.data(), sizeof(refusal));
      fail(ErrorCode::kInvalidValue,
           "{} has room for {} bytes only: {} bytes with tag {} were sent; both sides must agree on sizes",
           peer_.text(), refusal.room, refusal.bytes, refusal.tag);
    }
    answer_ended_ = moved.ended;
    if (!moved.ended || last_ == kNone) return;
    const auto unsent = std::ranges::count_if(messages_, [](const OutMessage& one) { return one.sockets_left > 0; });
    fail(ErrorCode::kRankLost, "{} closed the connection with {} messages not yet sent{}", peer_.text(), unsent,
         reason_text(moved.error));
  }

  [[noreturn]] void fail_lost(const Outgoing& out, int error) {
    read_answer();  // throws the reason if the receiver has sent one
    fail(ErrorCode::kRankLost, "{} is gone: sending{} failed: {}", peer_.text(),
         out.path.empty() ? "" : " over " + out.path, std::strerror(error));
  }

  Stripes stripes_;
  std::size_t zero_copy_from_;
  std::int64_t silence_ns_;
  std::vector<Outgoing> sockets_;
  std::vector<OutMessage> messages_{kNetMaxRequests};
  std::size_t last_ = kNone;  // the last message of isend(), until all sockets have passed it; then all bytes are sent
  std::array<std::byte, sizeof(TcpTooLarge)> answer_{};  // of the receiver
  std::size_t answer_bytes_ = 0;                         // received bytes of answer_
  bool answer_ended_ = false;                            // the receiver has closed the connection
};

}  // namespace

std::unique_ptr<NetSender> make_tcp_sender(Greeted greeted, const NetOptions& options, bool on_host) {
  for (const Socket& socket : greeted.sockets) {
    if (on_host) limit_send_buffer(socket, kHostSendBufferBytes);
  }
  return std::make_unique<TcpSender>(std::move(greeted), options, on_host);
}

std::unique_ptr<NetSender> make_tcp_sender(Greeted greeted, const NetOptions& options) {
  const bool on_host = stays_on_host(greeted.sockets.front());
  return make_tcp_sender(std::move(greeted), options, on_host);
}

}  // namespace slip::transport
