#include "transport/frame_socket.hpp"

#include <algorithm>

namespace slip {
namespace {
constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadsAtOnce = 16;  // then the others get their turn
}  // namespace

void FrameSocket::queue(FrameHeader header, std::span<const std::byte> body) {
  if (ended_) return;
  header.magic = magic_;
  header.bytes = static_cast<std::uint32_t>(body.size());
  const auto head = bytes_of(header);
  out_.insert(out_.end(), head.begin(), head.end());
  out_.insert(out_.end(), body.begin(), body.end());
  flush();
}

void FrameSocket::flush() {
  while (unsent() && !ended_) {
    const Socket::Moved moved = socket_.try_send(std::span(out_).subspan(sent_));
    // A reset is seen here before what came ahead of it was read: reading tells when it is over.
    if (moved.ended) sent_ = out_.size();
    if (moved.bytes == 0) break;
    sent_ += moved.bytes;
  }
  if (!unsent()) {
    out_.clear();
    sent_ = 0;
  }
}

void FrameSocket::pump() {
  if (taken_ > 0) {
    in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(taken_));
    taken_ = 0;
  }
  for (std::size_t turn = 0; turn < kReadsAtOnce && !ended_; ++turn) {
    const std::size_t had = in_.size();
    in_.resize(had + kReadBytes);
    const Socket::Moved moved = socket_.try_recv(std::span(in_).subspan(had));
    in_.resize(had + moved.bytes);
    ended_ = moved.ended;
    if (moved.bytes == 0) break;  // not before: who sends and closes at once is seen to have closed
  }
}

std::optional<Frame> FrameSocket::next() {
  const std::span<const std::byte> rest = std::span(in_).subspan(taken_);
  if (rest.empty()) return std::nullopt;
  FrameHeader header;
  // A stranger is known by the bytes there are: one who sends three wrong ones and waits is not waited for.
  const std::size_t known = std::min(rest.size(), sizeof(header.magic));
  if (std::memcmp(rest.data(), &magic_, known) != 0) stranger_ = true;
  if (stranger_ || rest.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, rest.data(), sizeof(header));
  if (header.bytes > max_body_) stranger_ = true;
  if (stranger_ || rest.size() < sizeof(header) + header.bytes) return std::nullopt;
  const auto body = rest.subspan(sizeof(header), header.bytes);
  taken_ += sizeof(header) + header.bytes;
  return Frame{header, {body.begin(), body.end()}};
}

}  // namespace slip
