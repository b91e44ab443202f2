// FrameSocket: a non-blocking socket that sends and receives frames, for event loops with many of them. It buffers
// frames that cannot be sent yet, and returns received frames one by one. First both ends prove that they know the same
// secret; frames that are queued earlier are sent after that. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "transport/bootstrap/frame.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {

// Time limit of one attempt to connect: it doubles up to the maximum. On a lossy network a new attempt is faster than
// the kernel's retransmissions, whose intervals double from 1 s on.
inline constexpr std::int64_t kFirstAttemptNs = 1'000'000'000, kMaxAttemptNs = 8'000'000'000;

// Handshake: both ends of a new connection prove that they know the same secret, before any frame is sent; frame.hpp
// describes the protocol. It only consumes and produces bytes: FrameSocket sends and receives them. Afterwards there is
// one key for each direction.
class Handshake {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };
  Handshake(const Secret& secret, Side side);

  Side side() const { return side_; }
  // This end has sent its proof and checked the peer's: key_of() is valid.
  bool over() const { return state_ == State::kOver; }
  // Takes one step if the received bytes allow it, and appends the reply to `out`. Returns the number of bytes taken;
  // 0: more bytes are needed, it is over, or it failed.
  std::size_t advance(std::span<const std::byte> received, std::vector<std::byte>& out);
  void begin(std::vector<std::byte>& out) const {  // appends the first message of the connecting end
    Opening opening;
    opening.nonce = nonces_[0];
    append(out, bytes_of(opening));
  }

  // Why the peer is not a rank of this job; empty: no failure so far.
  const std::string& failure() const { return failure_; }
  bool has_spoken() const { return spoken_; }  // the peer has sent at least sizeof(kMark) bytes
  base::Hmac key_of(Side sender) const {       // of the frames that `sender` sends
    return base::Hmac(derived(sender == Side::kConnects ? "key to the accepting end" : "key to the connecting end"));
  }

 private:
  enum class State : std::uint8_t { kOpening, kReply, kProof, kOver };  // the next message from the peer

  bool check_mark(std::span<const std::byte> received);
  Secret derived(std::string_view label) const;  // from the secret and both nonces
  std::size_t take_opening(std::span<const std::byte> received, std::vector<std::byte>& out);
  std::size_t take_reply(std::span<const std::byte> received, std::vector<std::byte>& out);
  std::size_t take_proof(std::span<const std::byte> received);

  const Secret secret_;
  const Side side_;
  State state_;
  Secret nonces_[2] = {};  // indexed by Side: of the connecting and the accepting end
  bool spoken_ = false;
  std::string failure_;
};

class FrameSocket {
 public:
  using Side = Handshake::Side;
  FrameSocket(Socket socket, const Secret& secret, Side side);

  // Makes one attempt to connect, and returns when both ends have proven the secret. Throws kIo if no process listens
  // there, the peer is foreign, or it closed the connection; kTimeout if there was no answer before the deadline.
  // `closed`, if not null: set to true if the peer closed the connection and had sent nothing that is foreign.
  static FrameSocket reach(const SocketAddress& peer, const Secret& secret, const Deadline& deadline,
                           bool* closed = nullptr);
  // Repeats attempts until the deadline, also if the peer closes the connection. Throws kIo at once if the connection
  // is refused, because the peer's process has ended, and if the peer is foreign.
  static FrameSocket reach_in_time(const SocketAddress& peer, const Secret& secret, const Deadline& deadline);

  void trust() { max_body_ = kMaxBody; }  // the peer has identified itself

  // Appends a frame to the send buffer, and sends what the socket takes now.
  void queue(FrameHeader header, std::span<const std::byte> body = {});
  void flush();
  bool unsent() const { return wants_to_write() || !held_.empty(); }
  // Whether to poll for POLLOUT. Held frames do not count: they wait for the peer's proof, not for the socket.
  bool wants_to_write() const { return sent_ < out_.size(); }

  void pump();  // reads the bytes that have arrived
  // The next complete frame. None: it has not arrived, or the bytes are not a frame of this job, see is_foreign().
  std::optional<Frame> next() { return is_proven() ? take_frame() : std::nullopt; }
  Frame wait_for_frame(const Deadline& deadline);  // throws kIo if the connection closes first

  bool ended() const { return ended_; }  // the peer closed the connection, or is gone
  bool is_foreign() const { return !reason().empty(); }
  // Why the peer is foreign; empty: it is not, so far.
  const std::string& reason() const { return reason_.empty() ? handshake_.failure() : reason_; }
  bool is_proven() const { return proven_; }
  bool has_spoken() const { return handshake_.has_spoken(); }
  const Socket& socket() const { return socket_; }

 private:
  struct Direction {
    std::optional<base::Hmac> key;
    std::uint64_t frames = 0;
    Secret code(const FrameHeader& header, std::span<const std::byte> body);
  };

  void put_frame(FrameHeader header, std::span<const std::byte> body);
  void advance_handshake();
  void become_proven();
  std::optional<Frame> take_frame();
  std::span<const std::byte> rest() const { return std::span(in_).subspan(taken_); }

  Socket socket_;
  Handshake handshake_;
  UnprovenToken unproven_;  // at the accepting end, until the peer is proven
  Direction sending_, receiving_;
  std::size_t max_body_ = kMaxFirstBody;  // a peer that sends a longer body is foreign: not a rank of this job
  std::vector<std::byte> out_, in_;
  std::vector<Frame> held_;           // queued before the proof
  std::size_t sent_ = 0, taken_ = 0;  // bytes of out_ that are sent, and of in_ that are consumed
  bool ended_ = false, proven_ = false;
  std::string reason_;  // why the peer is foreign, if it was found after the handshake
};

}  // namespace slip::transport
