#include "transport/bootstrap/frame_socket.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.hpp"
#include "slip/error.hpp"

namespace slip {
namespace {

constexpr std::size_t kReadBytes = std::size_t{64} << 10;
constexpr std::size_t kReadsAtOnce = 16;  // then the others get their turn
// An attempt to connect, the first one and the longest: where packets are lost, a new connection is there sooner than
// the next repetition of an old one, whose pauses double from 1 s on.
constexpr std::int64_t kFirstAttemptNs = 1'000'000'000, kMaxAttemptNs = 8'000'000'000;
constexpr std::int64_t kPauseNs = 10'000'000;  // after a connection that closed

}  // namespace

FrameSocket::FrameSocket(Socket socket, const Secret& secret, Side side, std::size_t max_body)
    : socket_(std::move(socket)),
      secret_(secret),
      side_(side),
      state_(side == Side::kConnects ? State::kReply : State::kOpening),
      max_body_(max_body) {
  nonces_[static_cast<std::size_t>(side)] = random_secret();
  if (side == Side::kAccepts) {
    guest_ = UnprovenToken::take();
  } else {
    Opening opening;
    opening.nonce = nonces_[0];
    put(bytes_of(opening));
    flush();
  }
}

FrameSocket FrameSocket::attempt(const SocketAddress& peer, const Secret& secret, const Deadline& deadline,
                                 bool& refused) {
  refused = true;  // unless there is a connection
  Socket socket = Socket::connect(peer, deadline);
  refused = false;
  // Before anything is said: any user may listen at an abstract name, and the kernel says who does.
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
      throw Error(Code::kIo, fmt::format("what listens at {} {}", peer.text(), result.reason_), {});
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
      // It was one guest too many, or its process ends, which the next attempt finds out.
      if (!closed || wait_a_moment(kPauseNs, deadline) != Waited::kReady) throw;
    }
  }
}

Secret FrameSocket::derived(std::string_view label) const {
  std::array<std::byte, 2 * sizeof(Secret)> both;
  std::ranges::copy(nonces_[1], std::ranges::copy(nonces_[0], both.begin()).out);
  return derive(secret_, label, both);
}

void FrameSocket::take_keys() {
  const Hmac to_accepting(derived("key to the accepting end")), to_connecting(derived("key to the connecting end"));
  sending_.key = side_ == Side::kConnects ? to_accepting : to_connecting;
  receiving_.key = side_ == Side::kConnects ? to_connecting : to_accepting;
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
  put(bytes_of(header));
  put(body);
  put(sending_.code(header, body));
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
    // A reset is seen here before what came ahead of it was read: reading tells when it is over.
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
    if (moved.bytes == 0) break;  // not before: who sends and closes at once is seen to have closed
  }
  while (!stranger() && go_on()) continue;
}

bool FrameSocket::go_on() {
  switch (state_) {
    case State::kOpening: return take_opening();
    case State::kReply: return take_reply();
    case State::kProof: return take_proof();
    case State::kAccepted: {
      const std::optional<Frame> frame = take_frame();
      if (frame && frame->header.kind != FrameKind::kAccepted) reason_ = "is no rank of this job";
      if (!frame || stranger()) return false;
      become_proven();
      return false;
    }
    case State::kProven: break;
  }
  return false;
}

// A stranger is known by the bytes there are: one who sends three wrong ones and waits is not waited for.
bool FrameSocket::begins_rightly() {
  const std::size_t known = std::min(rest().size(), sizeof(kMark));
  if (std::memcmp(rest().data(), kMark, known) != 0) reason_ = "does not speak the protocol of Slipstream";
  spoken_ = spoken_ || known == sizeof(kMark);
  return !stranger();
}

bool FrameSocket::take_opening() {
  Opening opening;
  if (rest().empty() || !begins_rightly() || rest().size() < sizeof(opening)) return false;
  std::memcpy(&opening, rest().data(), sizeof(opening));
  taken_ += sizeof(opening);
  nonces_[0] = opening.nonce;
  Reply reply;
  reply.opening.nonce = nonces_[1];
  if (opening.version == kProtocolVersion) reply.proof = derived("accepts");
  else reason_ = wrong_version(opening.version);
  put(bytes_of(reply));  // also of another version, so that it can say so
  flush();
  state_ = State::kProof;
  return true;
}

std::string FrameSocket::wrong_version(std::uint32_t version) {
  return fmt::format("speaks version {} of the protocol, this process version {}: install the same on all hosts",
                     version, kProtocolVersion);
}

bool FrameSocket::take_reply() {
  Reply reply;
  if (rest().empty() || !begins_rightly() || rest().size() < sizeof(reply)) return false;
  std::memcpy(&reply, rest().data(), sizeof(reply));
  taken_ += sizeof(reply);
  nonces_[1] = reply.opening.nonce;
  if (reply.opening.version != kProtocolVersion) reason_ = wrong_version(reply.opening.version);
  else if (!equal_in_constant_time(reply.proof, derived("accepts")))
    reason_ =
        "does not know the secret of this job: is SLIP_SECRET, or the file with the secret, the same for all ranks?";
  if (stranger()) return false;
  put(derived("connects"));
  flush();
  take_keys();
  state_ = State::kAccepted;
  return true;
}

bool FrameSocket::take_proof() {
  Secret proof;
  if (rest().size() < sizeof(proof)) return false;
  std::memcpy(proof.data(), rest().data(), sizeof(proof));
  taken_ += sizeof(proof);
  if (!equal_in_constant_time(proof, derived("connects"))) reason_ = "does not know the secret of this job";
  if (stranger()) return false;
  take_keys();
  put_frame({.kind = FrameKind::kAccepted}, {});
  become_proven();
  return false;
}

void FrameSocket::become_proven() {
  state_ = State::kProven;
  guest_.give_back();
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
                  fmt::format("{}: the other end {}", socket_.text(), stranger() ? reason_ : "closed the connection"),
                  {});
    const Waited waited = wait_for(socket_.descriptor(), wants_to_write() ? POLLIN | POLLOUT : POLLIN, deadline);
    if (waited == Waited::kAborted) throw Error(Code::kAborted, "waiting for an answer was aborted", {});
    if (waited == Waited::kTimeout)
      throw Error(Code::kTimeout, fmt::format("{}: no answer before the deadline", socket_.text()), {});
  }
}

}  // namespace slip
