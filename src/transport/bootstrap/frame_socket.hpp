// FrameSocket: a socket that carries frames, for loops that wait for many of them. It never blocks: what cannot be sent
// yet is kept, and what has come is handed out frame by frame. Both ends prove first that they know the same secret;
// frames that are queued before are sent then. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/sha256.hpp"
#include "transport/bootstrap/frame.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

class FrameSocket {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };
  // A body longer than `max_body` is a stranger's; see trust().
  FrameSocket(Socket socket, const Secret& secret, Side side, std::size_t max_body = kMaxFirstBody);

  // One attempt, until both ends have proven the secret. kIo: nobody listens there, or a stranger, or it closed;
  // kTimeout: there was no answer before the deadline.
  static FrameSocket reach(const SocketAddress& peer, const Secret& secret, const Deadline& deadline);
  // Attempts until the deadline; only a peer that refuses the connection ends it, with kIo: its process is gone.
  static FrameSocket reach_in_time(const SocketAddress& peer, const Secret& secret, const Deadline& deadline);

  void trust() { max_body_ = kMaxBody; }  // it said what was expected of it

  // Adds a frame to what is to be sent, and sends what goes.
  void queue(FrameHeader header, std::span<const std::byte> body = {});
  void flush();
  bool unsent() const { return wants_to_write() || !held_.empty(); }
  bool wants_to_write() const { return sent_ < out_.size(); }  // for poll: what is held waits for the other end

  void pump();  // takes what has come
  // The next whole frame. None when it is not all there, or when what is there is no frame of this job (stranger()).
  std::optional<Frame> next();
  Frame wait_for_frame(const Deadline& deadline);  // kIo when the connection closes before

  bool ended() const { return ended_; }  // the other end closed, or is gone
  bool stranger() const { return !reason_.empty(); }
  const std::string& reason() const { return reason_; }  // why it is taken for a stranger
  bool is_proven() const { return state_ == State::kProven; }
  bool has_spoken() const { return spoken_; }  // of a guest: it said something that a rank would say
  const Socket& socket() const { return socket_; }

 private:
  // What is waited for, until all is proven.
  enum class State : std::uint8_t { kOpening, kReply, kProof, kAccepted, kProven };
  struct Direction {
    std::optional<Hmac> key;
    std::uint64_t frames = 0;
    Secret code(const FrameHeader& header, std::span<const std::byte> body);
  };

  void put(std::span<const std::byte> bytes) { out_.insert(out_.end(), bytes.begin(), bytes.end()); }
  static FrameSocket attempt(const SocketAddress& peer, const Secret& secret, const Deadline& deadline, bool& refused);
  static std::string wrong_version(std::uint32_t version);
  void put_frame(FrameHeader header, std::span<const std::byte> body);
  Secret derived(std::string_view label) const;  // from the secret and both nonces
  void take_keys();
  void become_proven();
  bool begins_rightly();
  bool go_on();  // one step of the proofs, if what has come allows one; false: not now
  bool take_opening();
  bool take_reply();
  bool take_proof();
  std::optional<Frame> take_frame();
  std::span<const std::byte> rest() const { return std::span(in_).subspan(taken_); }

  Socket socket_;
  const Secret secret_;
  const Side side_;
  State state_;
  UnprovenToken guest_;    // of the accepting end, until it is proven
  Secret nonces_[2] = {};  // by Side: of the connecting end, and of the accepting one
  Direction sending_, receiving_;
  std::size_t max_body_;
  std::vector<std::byte> out_, in_;
  std::vector<Frame> held_;
  std::size_t sent_ = 0, taken_ = 0;  // of out_ and in_
  bool ended_ = false, spoken_ = false;
  std::string reason_;
};

}  // namespace slip
