#include "transport/bootstrap/frame_socket.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "slip/error.hpp"

namespace slip {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadsAtOnce = 16;  // reads in one call of pump(); then other connections are served
// Time limit of one attempt to connect: it doubles up to the maximum. On a lossy network a new attempt is faster than
// the kernel's retransmissions, whose intervals double from 1 s on.
constexpr std::int64_t kFirstAttemptNs = 1'000'000'000, kMaxAttemptNs = 8'000'000'000;
constexpr std::int64_t kPauseNs = 10'000'000;  // delay before the next attempt after the peer closed the connection

}  // namespace

FrameSocket::FrameSocket(Socket socket, const Secret& secret, Side side, std::size_t max_body)
    : socket_(std::move(socket)), handshake_(secret, side), max_body_(max_body) {
  if (side == Side::kAccepts) {
    unproven_ = UnprovenToken::take();
  } else {
    handshake_.begin(out_);
    flush();
  }
}

FrameSocket FrameSocket::attempt(const SocketAddress& peer, const Secret& secret, const Deadline& deadline,
                                 bool& refused) {
  refused = true;  // remains true if connect throws
  Socket socket = Socket::connect(peer, deadline);
  refused = false;
  // Check this before sending anything: any user may listen at an abstract name, and the kernel knows which user does.
  if (!socket.same_user())
    throw Error(Code::kInvalidValue,
                fmt::format("a process of another user listens at {}: choose another name", peer.text()), {});
  FrameSocket result(std::move(socket), secret, Side::kConnects);
  while (!result.is_proven()) {
    const short events = result.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    const Waited waited = wait_for(result.socket_.descriptor(), events, deadline);
    if (waited == Waited::kAborted) throw Error(Code::kAborted, "connecting to " + peer.text() + " was aborted", {});
    if (waited == Waited::kTimeout)
      throw Error(Code::kTimeout, fmt::format("{} does not answer before the deadline", peer.text()), {});
    result.flush();
    result.pump();
    if (result.stranger())
      throw Error(Code::kIo, fmt::format("what listens at {} {}", peer.text(), result.reason()), {});
    if (!result.is_proven() && result.ended())
      throw Error(Code::kIo, fmt::format("{} closed the connection", peer.text()), {});
  }
  return result;
}

FrameSocket FrameSocket::reach(const SocketAddress& peer, const Secret& secret, const Deadline& deadline) {
  bool refused = false;
  return attempt(peer, secret, deadline, refused);
}

FrameSocket FrameSocket::reach_in_time(const SocketAddress& peer, const Secret& secret, const Deadline& deadline) {
  for (std::int64_t limit = kFirstAttemptNs;; limit = std::min(2 * limit, kMaxAttemptNs)) {
    const std::int64_t end = now_ns() + limit;
    const bool last = deadline.at_ns != 0 && deadline.at_ns <= end;
    bool refused = false;
    try {
      return attempt(peer, secret, {last ? deadline.at_ns : end, deadline.abort}, refused);
    } catch (const Error& error) {
      const bool late = error.code() == Code::kTimeout, closed = error.code() == Code::kIo && !refused;
      if (late && !last) continue;
      // The peer closed the connection because it had too many unproven ones, or its process is ending. The next
      // attempt will show which.
      if (!closed || wait_a_moment(kPauseNs, deadline) != Waited::kReady) throw;
    }
  }
}

Secret FrameSocket::Direction::code(const FrameHeader& header, std::span<const std::byte> body) {
  const std::uint64_t number = frames++;
  const Sha256::Digest digest = key->of({bytes_of(number), bytes_of(header), body});
  Secret result;
  std::copy_n(digest.begin(), result.size(), result.begin());
  return result;
}

void FrameSocket::put_frame(FrameHeader header, std::span<const std::byte> body) {
  header.bytes = static_cast<std::uint32_t>(body.size());
  const Secret code = sending_.code(header, body);
  for (const std::span<const std::byte> part : {bytes_of(header), body, std::span<const std::byte>(code)})
    out_.insert(out_.end(), part.begin(), part.end());
}

void FrameSocket::queue(FrameHeader header, std::span<const std::byte> body) {
  if (ended_) return;
  if (!is_proven()) {
    held_.push_back({header, {body.begin(), body.end()}});
    return;
  }
  put_frame(header, body);
  flush();
}

void FrameSocket::flush() {
  while (wants_to_write() && !ended_) {
    const Socket::Moved moved = socket_.try_send(std::span(out_).subspan(sent_));
    // A reset makes send() fail while received bytes are still unread. So only drop the unsent bytes here: pump() reads
    // the rest and then finds the end of the connection.
    if (moved.ended) sent_ = out_.size();
    if (moved.ended) held_.clear();
    if (moved.bytes == 0) break;
    sent_ += moved.bytes;
  }
  if (!wants_to_write()) {
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
    // Do not stop earlier: if the peer sends and closes at once, the end must be found, too.
    if (moved.bytes == 0) break;
  }
  if (!proven_) advance_handshake();
}

void FrameSocket::advance_handshake() {
  while (const std::size_t taken = handshake_.advance(rest(), out_)) taken_ += taken;
  flush();
  if (stranger() || !handshake_.over()) return;
  if (!sending_.key) {
    sending_.key = handshake_.sending_key();
    receiving_.key = handshake_.receiving_key();
  }
  if (handshake_.side() == Side::kAccepts) {
    put_frame({.kind = FrameKind::kAccepted}, {});
    return become_proven();
  }
  const std::optional<Frame> frame = take_frame();
  if (frame && frame->header.kind != FrameKind::kAccepted) reason_ = "is no rank of this job";
  if (frame && !stranger()) become_proven();
}

void FrameSocket::become_proven() {
  proven_ = true;
  unproven_.give_back();
  for (const Frame& frame : held_) put_frame(frame.header, frame.body);
  held_.clear();
  flush();
}

std::optional<Frame> FrameSocket::take_frame() {
  const std::span<const std::byte> bytes = rest();
  FrameHeader header;
  if (stranger() || bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.bytes > max_body_) reason_ = "sends more than is expected";
  const std::size_t whole = sizeof(header) + header.bytes + sizeof(Secret);
  if (stranger() || bytes.size() < whole) return std::nullopt;
  const auto body = bytes.subspan(sizeof(header), header.bytes);
  if (!equal_in_constant_time(bytes.subspan(sizeof(header) + header.bytes, sizeof(Secret)),
                              receiving_.code(header, body))) {
    reason_ = "sent a message that is not authentic";
    return std::nullopt;
  }
  taken_ += whole;
  return Frame{header, {body.begin(), body.end()}};
}

std::optional<Frame> FrameSocket::next() { return is_proven() ? take_frame() : std::nullopt; }

Frame FrameSocket::wait_for_frame(const Deadline& deadline) {
  for (;;) {
    flush();
    pump();
    if (std::optional<Frame> frame = next()) return std::move(*frame);
    if (ended() || stranger())
      throw Error(Code::kIo,
                  fmt::format("{}: the other end {}", socket_.text(), stranger() ? reason() : "closed the connection"),
                  {});
    const Waited waited = wait_for(socket_.descriptor(), wants_to_write() ? POLLIN | POLLOUT : POLLIN, deadline);
    if (waited == Waited::kAborted) throw Error(Code::kAborted, "waiting for an answer was aborted", {});
    if (waited == Waited::kTimeout)
      throw Error(Code::kTimeout, fmt::format("{}: no answer before the deadline", socket_.text()), {});
  }
}

}  // namespace slip
