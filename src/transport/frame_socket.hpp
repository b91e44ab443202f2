// FrameSocket: a socket that carries frames, for loops that wait for many of them. It never blocks: what cannot be sent
// yet is kept, and what has come is handed out frame by frame. Not thread-safe.
#pragma once

#include <optional>
#include <vector>

#include "transport/frame.hpp"
#include "transport/socket.hpp"

namespace slip {

class FrameSocket {
 public:
  // A body longer than `max_body` is a stranger's; see trust().
  FrameSocket(Socket socket, std::uint64_t magic, std::size_t max_body = kMaxFirstBody)
      : socket_(std::move(socket)), magic_(magic), max_body_(max_body) {}

  void trust() { max_body_ = kMaxBody; }  // it said what was expected of it

  // Adds a frame to what is to be sent, with this channel's magic, and sends what goes.
  void queue(FrameHeader header, std::span<const std::byte> body = {});
  void flush();
  bool unsent() const { return sent_ < out_.size(); }

  void pump();  // takes what has come
  // The next whole frame. None when it is not all there, or when what is there is no frame of this job (stranger()).
  std::optional<Frame> next();

  bool ended() const { return ended_; }  // the other end closed, or is gone
  bool stranger() const { return stranger_; }
  const Socket& socket() const { return socket_; }

 private:
  Socket socket_;
  std::uint64_t magic_;
  std::size_t max_body_;
  std::vector<std::byte> out_, in_;
  std::size_t sent_ = 0, taken_ = 0;  // of out_ and in_
  bool ended_ = false, stranger_ = false;
};

}  // namespace slip
