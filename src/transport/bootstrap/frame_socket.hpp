// FrameSocket: a socket that carries frames, for loops that wait for many of them. It never blocks: it keeps what
// cannot be sent yet, and hands out what has arrived frame by frame. First both ends prove that they know the same
// secret; frames that are queued before are sent then. Not thread-safe.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/bootstrap/frame.hpp"
#include "transport/bootstrap/handshake.hpp"
#include "transport/socket/socket.hpp"

namespace slip {

class FrameSocket {
 public:
  using Side = Handshake::Side;
  // A peer that sends a body longer than `max_body` is a stranger; see trust().
  FrameSocket(Socket socket, const Secret& secret, Side side, std::size_t max_body = kMaxFirstBody);

  // One attempt to connect, until both ends have proven the secret. kIo: no process listens there, it is a stranger, or
  // it closed the connection; kTimeout: there was no answer before the deadline.
  static FrameSocket reach(const SocketAddress& peer, const Secret& secret, const Deadline& deadline);
  // Attempts until the deadline. Only a peer that refuses the connection ends it before, with kIo: its process is gone.
  static FrameSocket reach_in_time(const SocketAddress& peer, const Secret& secret, const Deadline& deadline);

  void trust() { max_body_ = kMaxBody; }  // the peer has identified itself

  // Adds a frame to what is to be sent, and sends what can be sent now.
  void queue(FrameHeader header, std::span<const std::byte> body = {});
  void flush();
  bool unsent() const { return wants_to_write() || !held_.empty(); }
  bool wants_to_write() const { return sent_ < out_.size(); }  // for poll: held frames wait for the other end

  void pump();  // reads what has arrived
  // The next complete frame. None: it has not arrived, or what arrived is no frame of this job, see stranger().
  std::optional<Frame> next();
  Frame wait_for_frame(const Deadline& deadline);  // kIo if the connection closes before

  bool ended() const { return ended_; }  // the other end closed, or is gone
  bool stranger() const { return !reason().empty(); }
  const std::string& reason() const {
    return reason_.empty() ? handshake_.failure() : reason_;
  }  // why it is a stranger
  bool is_proven() const { return proven_; }
  bool has_spoken() const { return handshake_.has_spoken(); }  // an unproven peer began as a rank would
  const Socket& socket() const { return socket_; }

 private:
  struct Direction {
    std::optional<Hmac> key;
    std::uint64_t frames = 0;
    Secret code(const FrameHeader& header, std::span<const std::byte> body);
  };

  static FrameSocket attempt(const SocketAddress& peer, const Secret& secret, const Deadline& deadline, bool& refused);
  void put_frame(FrameHeader header, std::span<const std::byte> body);
  void advance_handshake();
  void become_proven();
  std::optional<Frame> take_frame();
  std::span<const std::byte> rest() const { return std::span(in_).subspan(taken_); }

  Socket socket_;
  Handshake handshake_;
  UnprovenToken unproven_;  // of the accepting end, until it is proven
  Direction sending_, receiving_;
  std::size_t max_body_;
  std::vector<std::byte> out_, in_;
  std::vector<Frame> held_;           // queued before the proof
  std::size_t sent_ = 0, taken_ = 0;  // of out_ and in_
  bool ended_ = false, proven_ = false;
  std::string reason_;  // why the peer is a stranger, found after the handshake
};

}  // namespace slip
