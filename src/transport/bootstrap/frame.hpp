// Frame: one control message between ranks, or between a rank and the root. It has a header of 24 bytes, a body, and an
// authentication code of 16 bytes. Before the first frame, both ends of a connection prove that they know the same
// secret:
//
//   connecting end            accepting end
//   Opening: nonce        ->
//                         <-  Reply: nonce, proof           HMAC(secret, "accepts", both nonces)
//   proof                 ->                                HMAC(secret, "connects", both nonces)
//                         <-  kAccepted, the first frame
//
// The code of a frame is HMAC(key, number of the frame, header, body). One key for each direction is derived from the
// secret and both nonces. So a frame cannot be replayed: not on another connection, in the other direction, a second
// time or in another order. The secret is never sent, and nothing is encrypted.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/bootstrap/secret.hpp"
#include "transport/socket/address.hpp"

namespace slip::transport {

// The setup call of a communicator, such as init, to which an exchange between ranks belongs. Each piece of an
// all-gather carries the kind. So ranks that make different calls get an error instead of waiting for each other.
enum class SetupKind : std::uint16_t { kOther, kInit, kAllocate, kSplit, kFinalize };

inline const char* setup_name(SetupKind kind) {
  switch (kind) {
    case SetupKind::kInit: return "init";
    case SetupKind::kAllocate: return "allocate";
    case SetupKind::kSplit: return "split";
    case SetupKind::kFinalize: return "finalize";
    case SetupKind::kOther: break;
  }
  return "another exchange";
}

struct SetupCall {
  SetupKind kind = SetupKind::kOther;
  std::int64_t deadline_ns = 0;  // shared by all exchanges of the call; 0: each exchange has the default timeout
};

static_assert(std::endian::native == std::endian::little,
              "frames are sent in the byte order of the host, which must be little-endian");

inline constexpr std::uint16_t kProtocolVersion = 3;

enum class FrameKind : std::uint16_t {
  kHello = 1,    // rank to root: the sender is `rank` of `nranks`; HelloBody
  kWelcome,      // root to rank: WelcomeBody
  kRefused,      // root to rank: the reason as text; `tag` is the ErrorCode
  kGreetRing,    // first frame on the connection from a rank to its successor
  kGreetDirect,  // first frame on a direct connection from a rank to another
  kMessage,      // a message from `rank` with `tag`
  kPiece,   // the contribution of `rank` to an all-gather; `tag`: number of the all-gather; passed on to the successor
  kAlive,   // a heartbeat
  kLost,    // `rank` is lost; LostBody; passed on both ways round the ring
  kLeft,    // goodbye: `rank` shuts down cleanly; `tag`: RankMonitor::calls(); passed on to the successor
  kFailed,  // `rank` failed: the reason as text; `tag` is the ErrorCode; passed on both ways round the ring
  kAsk,     // `rank` asks for the receiver's state; `tag`: number of the question
  kAnswer,  // the reply to kAsk, on the same connection, with the same tag
  kPing,    // answered by kAlive on the same connection
  kAccepted,     // the accepting end has verified the proof; used inside FrameSocket only
  kAllAnswered,  // root to rank, after kWelcome: all ranks' welcomes have been sent
  kInitOver,     // init of `rank` is over; passed on both ways round the ring
};

struct FrameHeader {
  FrameKind kind{};
  SetupKind call{};  // for kPiece: the setup call that the rank makes
  std::int32_t rank = 0;
  std::uint64_t tag = 0;
  std::int32_t nranks = 0;
  std::uint32_t bytes = 0;  // length of the body
};
static_assert(sizeof(FrameHeader) == 24);

inline constexpr char kMark[4] = {'s', 'l', 'i', 'p'};

struct Opening {
  char mark[4] = {kMark[0], kMark[1], kMark[2], kMark[3]};
  std::uint32_t version = kProtocolVersion;
  Secret nonce{};
};
static_assert(sizeof(Opening) == 24);

struct Reply {
  Opening opening;
  Secret proof{};
};

inline constexpr std::size_t kMaxBody = std::size_t{256} << 20;  // bytes
inline constexpr std::size_t kMaxFailureText = 2000;             // bytes
inline constexpr std::size_t kMaxFirstBody = 512;                // bytes, for a peer that has not identified itself

struct HelloBody {
  SocketAddress::WireFormat address;  // where the rank listens
  std::int32_t pid = 0;
  std::uint32_t reserved = 0;
  std::int64_t timeout_ns = 0;  // how long the rank waits for the others after it sent this frame
  char host[64] = {};
};

struct WelcomeBody {
  // Random: the session secret is derived from it and the id's secret. So jobs with the same id have different secrets.
  Secret session{};
  SocketAddress::WireFormat successor;
  std::int64_t rest_ns = 0;  // time until the earliest deadline of all ranks, which becomes the deadline of all
};

struct LostBody {
  std::int32_t cause = 0;
  std::int32_t noticed_by = 0;
};

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

struct Frame {
  FrameHeader header;
  std::vector<std::byte> body;
  std::string text() const { return text_of(body); }
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

inline void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

// False: the body does not have the size of T.
template <class T>
bool read_body(std::span<const std::byte> body, T& value) {
  if (body.size() != sizeof(T)) return false;
  std::memcpy(&value, body.data(), sizeof(T));
  return true;
}

}  // namespace slip::transport
