// The TCP network transport: its wire format and both ends of a connection. The rules for callers are in net.hpp. A
// connection has one or more sockets, and large messages are striped over them, in equal parts. The first socket
// carries the header and the first stripe of each message. The others carry stripes only. Each socket carries
// the messages in the same order, so the receiver knows to which message a stripe belongs.
#pragma once

#include <linux/errqueue.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "transport/net/net.hpp"
#include "transport/net/tcp_greeting.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {

struct TcpHeader {
  static constexpr std::uint32_t kMark = 0x6d736731;
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t mark = kMark;
};
static_assert(sizeof(TcpHeader) == 16);

// The receiver's error message: a message is larger than the receive that was posted for it. A receiver never sends
// anything else.
struct TcpTooLarge {
  static constexpr std::uint32_t kMark = 0x62696731;
  std::uint32_t mark = kMark;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0, room = 0;
};

// How a message is striped over the sockets of a connection. All sockets carry the same number of stripes, of the same
// length; at the end of the message, stripes may be shorter or empty. So sockets over interfaces of the same rate need
// the same time. A message of at most half a stripe is not divided: a second socket would cost more time than it saves.
struct Stripes {
  std::size_t sockets = 1, bytes = std::numeric_limits<std::size_t>::max();  // bytes: the maximum length of a stripe

  bool divides(std::size_t total) const { return sockets > 1 && total > bytes / 2; }
  // The length of the stripes of a message of `total` bytes: whole cache lines.
  std::size_t length(std::size_t total) const {
    constexpr std::size_t kLine = 64;
    const std::size_t rounds = (total - 1) / (sockets * bytes) + 1, stripes = sockets * rounds;
    return ((total - 1) / stripes + kLine) / kLine * kLine;
  }
  // The number of bytes that socket `index` carries of a message of `total` bytes.
  std::size_t on(std::size_t index, std::size_t total) const {
    if (!divides(total)) return index == 0 ? total : 0;
    const std::size_t stripe = length(total), round = sockets * stripe, rest = total % round, before = index * stripe;
    return total / round * stripe + (rest > before ? std::min(rest - before, stripe) : 0);
  }
  struct Piece {
    std::size_t offset, bytes;  // offset: in the message
  };
  // The next contiguous piece for socket `index`, which has carried `done` bytes of the message already.
  Piece piece(std::size_t index, std::size_t total, std::size_t done) const {
    if (!divides(total)) return {done, total - done};
    const std::size_t stripe = length(total), within = done % stripe;
    const std::size_t offset = (done / stripe * sockets + index) * stripe + within;
    return {offset, std::min(stripe - within, total - offset)};
  }
};

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

// connect() of the TCP network in two steps, for a caller that must not wait. When the dialer is done, pass the result
// of GreetingDialer::take() to make_tcp_sender().
GreetingDialer dial_tcp(const NetHandle& handle, const NetOptions& options);
std::unique_ptr<NetSender> make_tcp_sender(Greeted greeted, const NetOptions& options);
std::unique_ptr<NetReceiver> make_tcp_receiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes);

class TcpSender final : public NetSender {
 public:
  TcpSender(Greeted greeted, const NetOptions& options, bool stays_on_host);
  using NetSender::isend;
  NetRequest* isend(const NetPart& part, bool more) override;
  bool progress() override;
  std::int64_t watch(std::vector<pollfd>& all) const override;
  void check() override;

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
  std::size_t bytes_by(const Outgoing& out, std::size_t message) const;
  bool push(Outgoing& out);
  std::size_t gather(const Outgoing& out, std::span<iovec> pieces, bool& zero_copy) const;
  void advance(Outgoing& out, std::size_t bytes);
  void pass(Outgoing& out);
  void read_answer();
  bool settle_notices(Outgoing& out);
  void finish_if_done(std::size_t message);
  [[noreturn]] void fail_lost(const Outgoing& out, int error);

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

}  // namespace slip::transport
