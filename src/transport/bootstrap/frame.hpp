// Frame: one message between ranks, or between a rank and the root: a header of 24 bytes, a body, and a code of 16
// bytes that authenticates both. Before the first frame both ends of a connection prove that they know the same secret:
//
//   connecting end            accepting end
//   Opening: nonce        ->
//                         <-  Reply: nonce, proof           HMAC(secret, "accepts", both nonces)
//   proof                 ->                                HMAC(secret, "connects", both nonces)
//                         <-  kAccepted, the first frame
//
// The code of a frame is HMAC(key, number of the frame, header, body). The secret and both nonces give one key for each
// direction. So a frame is not valid on another connection, in the other direction, a second time or in another order.
// The secret is never sent, and nothing is encrypted.
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

namespace slip {

// The setup call of a communicator (any call but collectives) that an exchange between ranks belongs to. Each piece of
// a gathering carries the kind, so ranks that make different calls get an error instead of waiting for each other.
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
  std::int64_t deadline_ns = 0;  // of all exchanges of the call together; 0: each has the usual timeout
};

static_assert(std::endian::native == std::endian::little, "frames are little-endian, and so are our hosts");

inline constexpr std::uint16_t kProtocolVersion = 3;

enum class FrameKind : std::uint16_t {
  kHello = 1,    // rank to root: I am `rank` of `nranks`; HelloBody
  kWelcome,      // root to rank: WelcomeBody
  kRefused,      // root to rank: the reason as text; `tag` is the Code
  kGreetRing,    // first on the connection from a rank to its successor
  kGreetDirect,  // first on the connection of a rank that has messages for another
  kMessage,      // `rank` sends with `tag`
  kPiece,        // what `rank` gave to a gathering; `tag` counts gatherings; passed on to the successor
  kAlive,        // a heartbeat
  kLost,         // `rank` is lost; LostBody; passed on both ways round the ring
  kLeft,         // goodbye: `rank` shuts down cleanly; passed on to the successor
  kFailed,       // why `rank` failed, as text; `tag` is the Code; passed on both ways round the ring
  kAsk,          // `rank` asks what the other is doing; `tag` counts questions
  kAnswer,       // on the same connection, with the same tag
  kPing,         // answered by kAlive on the same connection
  kAccepted,     // the accepting end believes the proof; FrameSocket's own
  kAllAnswered,  // root to rank, behind kWelcome: the welcomes of all ranks have been sent
  kInitOver,     // init of `rank` is over; passed on both ways round the ring
};

struct FrameHeader {
  FrameKind kind{};
  SetupKind call{};  // of a piece: the call that its rank makes
  std::int32_t rank = 0;
  std::uint64_t tag = 0;
  std::int32_t nranks = 0;
  std::uint32_t bytes = 0;  // of the body
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

inline constexpr std::size_t kMaxBody = std::size_t{256} << 20;
inline constexpr std::size_t kMaxFailureText = 2000;
inline constexpr std::size_t kMaxFirstBody = 512;  // from a peer that has not identified itself

struct HelloBody {
  SocketAddress::Wire address;  // where the rank listens
  std::int32_t pid = 0;
  std::uint32_t reserved = 0;
  std::int64_t timeout_ns = 0;  // how long the rank waits for the others, from now
  char host[64] = {};
};

struct WelcomeBody {
  Secret session{};  // random: the session secret follows from it and the id's secret; an id may serve several jobs
  SocketAddress::Wire successor;
  std::int64_t rest_ns = 0;  // until the first deadline of any rank, which from now on counts for all
};

struct LostBody {
  std::int32_t cause = 0;
  std::int32_t noticed_by = 0;
};

struct Frame {
  FrameHeader header;
  std::vector<std::byte> body;
  std::string text() const { return {reinterpret_cast<const char*>(body.data()), body.size()}; }
};

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
inline std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// False if the body has another size.
template <class T>
bool read_body(std::span<const std::byte> body, T& value) {
  if (body.size() != sizeof(T)) return false;
  std::memcpy(&value, body.data(), sizeof(T));
  return true;
}

}  // namespace slip
