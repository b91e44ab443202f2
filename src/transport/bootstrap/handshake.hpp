// Handshake: both ends of a new connection prove that they know the same secret, before any frame is sent; frame.hpp
// describes the protocol. This class only consumes and produces bytes: FrameSocket sends and receives them. Afterwards
// there is one key for each direction.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/sha256.hpp"
#include "transport/bootstrap/frame.hpp"

namespace slip {

class Handshake {
 public:
  enum class Side : std::uint8_t { kConnects, kAccepts };
  Handshake(const Secret& secret, Side side);

  Side side() const { return side_; }
  bool over() const { return state_ == State::kOver; }  // both proofs are sent or checked: the keys are valid
  // Takes one step if the received bytes allow it, and appends the reply to `out`. Returns the number of bytes taken;
  // 0: more bytes are needed, it is over, or it failed.
  std::size_t advance(std::span<const std::byte> received, std::vector<std::byte>& out);
  void begin(std::vector<std::byte>& out) const;  // appends the first message of the connecting end

  // Why the peer is not a rank of this job; empty: no failure so far.
  const std::string& failure() const { return failure_; }
  bool has_spoken() const { return spoken_; }  // the peer has begun the handshake correctly
  Hmac sending_key() const;
  Hmac receiving_key() const;

 private:
  enum class State : std::uint8_t { kOpening, kReply, kProof, kOver };  // the message that it waits for

  bool begins_rightly(std::span<const std::byte> received);
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

}  // namespace slip
