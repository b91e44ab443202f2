// What the TCP network writes: handles, greetings, headers of messages, and how a message is dealt out to the sockets
// of a line. The first socket carries a header for each message and its first stripe, the others stripes only: what
// belongs where follows from the order of the headers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "transport/bootstrap/secret.hpp"
#include "transport/net/net.hpp"
#include "transport/socket/address.hpp"

namespace slip {

static_assert(std::endian::native == std::endian::little, "headers are little-endian, and so are our hosts");

inline constexpr std::uint32_t kTcpVersion = 3;

struct TcpHandle {
  char mark[4] = {'t', 'c', 'p', ' '};
  std::uint32_t version = kTcpVersion;
  Secret salt{};  // random: greetings for this listener count at no other
  SocketAddress::Wire address;
  std::int32_t rank = 0;
};
static_assert(sizeof(TcpHandle) <= kNetHandleBytes);

// First on each socket.
struct TcpGreeting {
  char mark[8] = {'s', 'l', 'i', 'p', ' ', 't', 'c', 'p'};
  std::uint64_t line = 0;  // random, the same on all sockets of one
  std::uint64_t stripe_bytes = 0;
  std::uint32_t version = kTcpVersion;
  std::int32_t rank = 0;
  std::int32_t index = 0, sockets = 0;
  std::int32_t channel = 0, reserved = 0;
  Secret code{};  // of all before, and the listener's salt; who does not know the key of the job is a stranger

  Secret expected_code(const Secret& key, const Secret& salt) const {
    const Secret own = derive(key, "slip line", salt);
    return derive(own, "greeting", std::as_bytes(std::span(this, 1)).first(offsetof(TcpGreeting, code)));
  }
};

struct TcpHeader {
  static constexpr std::uint32_t kMark = 0x6d736731;
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t mark = kMark;
};
static_assert(sizeof(TcpHeader) == 16);

// The only thing that a receiver ever says.
struct TcpTooLarge {
  static constexpr std::uint32_t kMark = 0x62696731;
  std::uint32_t mark = kMark;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0, room = 0;
};

struct Stripes {
  std::size_t ways = 1, bytes = std::numeric_limits<std::size_t>::max();

  // Of a message of `total` bytes, those that go by this way.
  std::size_t on(std::size_t way, std::size_t total) const {
    if (ways == 1) return total;
    const std::size_t round = ways * bytes, rest = total % round, before = way * bytes;
    return total / round * bytes + (rest > before ? std::min(rest - before, bytes) : 0);
  }
  struct Piece {
    std::size_t offset, bytes;  // in the message
  };
  // What comes by this way after `done` bytes of the message did.
  Piece piece(std::size_t way, std::size_t total, std::size_t done) const {
    if (ways == 1) return {done, total - done};
    const std::size_t within = done % bytes, offset = (done / bytes * ways + way) * bytes + within;
    return {offset, std::min(bytes - within, total - offset)};
  }
};

}  // namespace slip
