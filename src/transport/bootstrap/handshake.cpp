#include "transport/bootstrap/handshake.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace slip {
namespace {

std::string wrong_version(std::uint32_t version) {
  return fmt::format("speaks version {} of the protocol, this process version {}: install the same on all hosts",
                     version, kProtocolVersion);
}

void append(std::vector<std::byte>& out, std::span<const std::byte> bytes) {
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}  // namespace

Handshake::Handshake(const Secret& secret, Side side)
    : secret_(secret), side_(side), state_(side == Side::kConnects ? State::kReply : State::kOpening) {
  nonces_[static_cast<std::size_t>(side)] = random_secret();
}

void Handshake::begin(std::vector<std::byte>& out) const {
  Opening opening;
  opening.nonce = nonces_[0];
  append(out, bytes_of(opening));
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

Hmac Handshake::sending_key() const {
  return Hmac(derived(side_ == Side::kConnects ? "key to the accepting end" : "key to the connecting end"));
}

Hmac Handshake::receiving_key() const {
  return Hmac(derived(side_ == Side::kConnects ? "key to the connecting end" : "key to the accepting end"));
}

// Checks the first bytes as soon as they arrive: a foreign process that sends three wrong bytes and then waits is
// rejected at once.
bool Handshake::begins_rightly(std::span<const std::byte> received) {
  const std::size_t known = std::min(received.size(), sizeof(kMark));
  if (std::memcmp(received.data(), kMark, known) != 0) failure_ = "does not speak the protocol of Slipstream";
  spoken_ = spoken_ || known == sizeof(kMark);
  return failure_.empty();
}

std::size_t Handshake::take_opening(std::span<const std::byte> received, std::vector<std::byte>& out) {
  Opening opening;
  if (received.empty() || !begins_rightly(received) || received.size() < sizeof(opening)) return 0;
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
  if (received.empty() || !begins_rightly(received) || received.size() < sizeof(reply)) return 0;
  std::memcpy(&reply, received.data(), sizeof(reply));
  nonces_[1] = reply.opening.nonce;
  if (reply.opening.version != kProtocolVersion) failure_ = wrong_version(reply.opening.version);
  else if (!equal_in_constant_time(reply.proof, derived("accepts")))
    failure_ =
        "does not know the secret of this job: is SLIP_SECRET, or the file with the secret, the same for all ranks?";
  if (!failure_.empty()) return 0;
  append(out, derived("connects"));
  state_ = State::kOver;
  return sizeof(reply);
}

std::size_t Handshake::take_proof(std::span<const std::byte> received) {
  Secret proof;
  if (received.size() < sizeof(proof)) return 0;
  std::memcpy(proof.data(), received.data(), sizeof(proof));
  if (!equal_in_constant_time(proof, derived("connects"))) failure_ = "does not know the secret of this job";
  if (!failure_.empty()) return 0;
  state_ = State::kOver;
  return sizeof(proof);
}

}  // namespace slip
