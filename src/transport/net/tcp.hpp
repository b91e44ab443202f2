// The TCP network transport: its wire format and both ends of a connection. The rules for callers are in net.hpp. A
// connection has one or more sockets, and large messages are striped over them, in equal parts. The first socket
// carries the header and the first stripe of each message. The others carry stripes only. Each socket carries
// the messages in the same order, so the receiver knows to which message a stripe belongs.
#pragma once

#include <linux/errqueue.h>

#include <algorithm>
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

// connect() of the TCP network in two steps, for a caller that must not wait. When the dialer is done, pass the result
// of GreetingDialer::take() to make_tcp_sender().
GreetingDialer dial_tcp(const NetHandle& handle, const NetOptions& options);
std::unique_ptr<NetSender> make_tcp_sender(Greeted greeted, const NetOptions& options);
// `on_host`: both ends are on one host; the function above finds that out.
std::unique_ptr<NetSender> make_tcp_sender(Greeted greeted, const NetOptions& options, bool on_host);
std::unique_ptr<NetReceiver> make_tcp_receiver(NetPeer peer, std::vector<Socket> sockets, std::size_t stripe_bytes);

}  // namespace slip::transport
