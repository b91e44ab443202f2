#include "transport/bootstrap/frame_socket.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fail.hpp"

namespace slip::transport {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadsAtOnce = 16;       // reads in one call of pump(); then other connections are served
constexpr std::int64_t kPauseNs = 10'000'000;  // delay before the next attempt after the peer closed the connection

std::string wrong_version(std::uint32_t version) {
  return fmt::format(
      "speaks version {} of the protocol, and this process speaks version {}: install the same Slipstream on all hosts",
      version, kProtocolVersion);
}

}  // namespace

Handshake::Handshake(const Secret& secret, Side side)
    : secret_(secret), side_(side), state_(side == Side::kConnects ? State::kReply : State::kOpening) {
  nonces_[static_cast<std::size_t>(side)] = random_secret();
}

std::size_t Handshake::advance(std::span<const std::byte> received, std::vector<std::byte>& out) {
  if (!failure_.empty()) return 0;
  switch (state_) {
    case State::kOpening: return take_opening(received, out);
    case State::kReply: return take_reply(received, out);
    case State::kProof: return take_proof(received);
    case State::kOver: break;
  }
  return 0;
}

Secret Handshake::derived(std::string_view label) const {
  std::array<std::byte, 2 * sizeof(Secret)> both;
  std::ranges::copy(nonces_[1], std::ranges::copy(nonces_[0], both.begin()).out);
  return derive(secret_, label, both);
}

// Checks the first bytes as soon as they arrive, so that a foreign process is rejected after its first wrong byte.
bool Handshake::check_mark(std::span<const std::byte> received) {
  const std::size_t known = std::min(received.size(), sizeof(kMark));
  if (std::memcmp(received.data(), kMark, known) != 0) failure_ = "does not speak the protocol of Slipstream";
  spoken_ = spoken_ || known == sizeof(kMark);
  return failure_.empty();
}

std::size_t Handshake::take_opening(std::span<const std::byte> received, std::vector<std::byte>& out) {
  Opening opening;
  if (received.empty() || !check_mark(received) || received.size() < sizeof(opening)) return 0;
  std::memcpy(&opening, received.data(), sizeof(opening));
  nonces_[0] = opening.nonce;
  Reply reply;
  reply.opening.nonce = nonces_[1];
  if (opening.version == kProtocolVersion) reply.proof = derived("accepts");
  else failure_ = wrong_version(opening.version);
  append(out, bytes_of(reply));  // also to a peer of another version, so that it can report the difference
  state_ = State::kProof;
  return sizeof(opening);
}

std::size_t Handshake::take_reply(std::span<const std::byte> received, std::vector<std::byte>& out) {
  Reply reply;
  if (received.empty() || !check_mark(received) || received.size() < sizeof(reply)) return 0;
  std::memcpy(&reply, received.data(), sizeof(reply));
  nonces_[1] = reply.opening.nonce;
  if (reply.opening.version != kProtocolVersion) failure_ = wrong_version(reply.opening.version);
  else if (!base::equal_in_constant_time(reply.proof, derived("accepts")))
    failure_ =
        "does not know the secret of this job: SLIP_SECRET, or the file with the secret, must be the same for all "
        "ranks";
  if (!failure_.empty()) return 0;
  append(out, derived("connects"));
  state_ = State::kOver;
  return sizeof(reply);
}

std::size_t Handshake::take_proof(std::span<const std::byte> received) {
  Secret proof;
  if (received.size() < sizeof(proof)) return 0;
  std::memcpy(proof.data(), received.data(), sizeof(proof));
  if (!base::equal_in_constant_time(proof, derived("connects"))) failure_ = "does not know the secret of this job";
  if (!failure_.empty()) return 0;
  state_ = State::kOver;
  return sizeof(proof);
}

FrameSocket::FrameSocket(Socket socket, const Secret& secret, Side side)
    : socket_(std::move(socket)), handshake_(secret, side) {
  if (side == Side::kAccepts) {
    unproven_ = take_unproven_token();
  } else {
    handshake_.begin(out_);
    flush();
  }
}

FrameSocket FrameSocket::reach(const SocketAddress& peer, const Secret& secret, const Deadline& deadline,
                               bool* closed) {
  Socket socket = Socket::connect(peer, deadline);
  // Check this before sending anything: any user may listen at an abstract name, and the kernel knows which user does.
  if (!socket.same_user())
    base::fail(ErrorCode::kInvalidValue, {}, "a process of another user listens at {}: choose another name",
               peer.text());
  FrameSocket result(std::move(socket), secret, Side::kConnects);
  while (!result.is_proven()) {
    const short events = result.wants_to_write() ? POLLIN | POLLOUT : POLLIN;
    const Waited waited = wait_for(result.socket_.descriptor(), events, deadline);
    if (waited == Waited::kAborted)
      throw Error(ErrorCode::kAborted, "connecting to " + peer.text() + " was aborted", {});
    if (waited == Waited::kTimeout)
      base::fail(ErrorCode::kTimeout, {}, "{} does not answer before the deadline", peer.text());
    result.flush();
    result.pump();
    if (result.is_foreign())
      base::fail(ErrorCode::kIo, {}, "the process that listens at {} {}", peer.text(), result.reason());
    if (result.is_proven() || !result.ended()) continue;
    if (closed) *closed = true;
    base::fail(ErrorCode::kIo, {}, "{} closed the connection", peer.text());
  }
  return result;
}

FrameSocket FrameSocket::reach_in_time(const SocketAddress& peer, const Secret& secret, const Deadline& deadline) {
  for (std::int64_t limit = kFirstAttemptNs;; limit = std::min(2 * limit, kMaxAttemptNs)) {
    const Deadline end = deadline.within(limit);
    bool closed = false;
    try {
      return reach(peer, secret, end, &closed);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kTimeout && end.at_ns != deadline.at_ns) continue;
      // The peer closed the connection because it had too many unproven ones, or its process is ending. The next
      // attempt will show which. A peer that answered as a foreign process would answer the same again.
      if (!closed || wait_a_moment(kPauseNs, deadline) != Waited::kReady) throw;
    }
  }
}

Secret FrameSocket::Direction::code(const FrameHeader& header, std::span<const std::byte> body) {
  const std::uint64_t number = frames++;
  const base::Sha256::Digest digest = key->of({bytes_of(number), bytes_of(header), body});
  Secret result;
  std::copy_n(digest.begin(), result.size(), result.begin());
  return result;
}

void FrameSocket::put_frame(FrameHeader header, std::span<const std::byte> body) {
  header.bytes = static_cast<std::uint32_t>(body.size());
  const Secret code = sending_.code(header, body);
  for (const std::span<const std::byte> part : {bytes_of(header), body, std::span<const std::byte>(code)})
    append(out_, part);
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
    // Not initialised: frames are short, and clearing the buffer would cost more than reading them.
    std::array<std::byte, kReadBytes> bytes;
    const Socket::Moved moved = socket_.try_recv(bytes);
    in_.insert(in_.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(moved.bytes));
    ended_ = moved.ended;
    // Do not stop earlier: if the peer sends and closes at once, the end must be found, too.
    if (moved.bytes == 0) break;
  }
  if (!proven_) advance_handshake();
}

void FrameSocket::advance_handshake() {
  while (const std::size_t taken = handshake_.advance(rest(), out_)) taken_ += taken;
  flush();
  if (is_foreign() || !handshake_.over()) return;
  if (!sending_.key) {
    const bool accepts = handshake_.side() == Side::kAccepts;
    sending_.key = handshake_.key_of(handshake_.side());
    receiving_.key = handshake_.key_of(accepts ? Side::kConnects : Side::kAccepts);
  }
  if (handshake_.side() == Side::kAccepts) {
    put_frame({.kind = FrameKind::kAccepted}, {});
    return become_proven();
  }
  const std::optional<Frame> frame = take_frame();
  if (frame && frame->header.kind != FrameKind::kAccepted) reason_ = "is not a rank of this job";
  if (frame && !is_foreign()) become_proven();
}

void FrameSocket::become_proven() {
  proven_ = true;
  unproven_ = nullptr;
  for (const Frame& frame : held_) put_frame(frame.header, frame.body);
  held_.clear();
  flush();
}

std::optional<Frame> FrameSocket::take_frame() {
  const std::span<const std::byte> bytes = rest();
  FrameHeader header;
  if (is_foreign() || bytes.size() < sizeof(header)) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.bytes > max_body_)
    reason_ = fmt::format("sent a message of {} bytes, and at most {} are allowed", header.bytes, max_body_);
  const std::size_t whole = sizeof(header) + header.bytes + sizeof(Secret);
  if (is_foreign() || bytes.size() < whole) return std::nullopt;
  const auto body = bytes.subspan(sizeof(header), header.bytes);
  if (!base::equal_in_constant_time(bytes.subspan(sizeof(header) + header.bytes, sizeof(Secret)),
                                    receiving_.code(header, body))) {
    reason_ = "sent a message that is not authentic";
    return std::nullopt;
  }
  taken_ += whole;
  return Frame{header, {body.begin(), body.end()}};
}

Frame FrameSocket::wait_for_frame(const Deadline& deadline) {
  for (;;) {
    flush();
    pump();
    if (std::optional<Frame> frame = next()) return std::move(*frame);
    if (ended() || is_foreign())
      base::fail(ErrorCode::kIo, {}, "{}: the other end {}", socket_.text(),
                 is_foreign() ? reason() : "closed the connection");
    const Waited waited = wait_for(socket_.descriptor(), wants_to_write() ? POLLIN | POLLOUT : POLLIN, deadline);
    if (waited == Waited::kAborted) base::fail(ErrorCode::kAborted, {}, "waiting for an answer was aborted");
    if (waited == Waited::kTimeout)
      base::fail(ErrorCode::kTimeout, {}, "{}: no answer before the deadline", socket_.text());
  }
}

}  // namespace slip::transport
