// SharedHost: one rank's side of the memory that the ranks of a host share: slots in which each posts its calls, the
// phase that each has reached, boxes, staging, and the first error of any of them, which then is everybody's.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "comm/call.hpp"
#include "comm/offer.hpp"
#include "comm/shared_plan.hpp"
#include "transport/segment.hpp"

namespace slip {

class SharedHost {
 public:
  // All ranks of the bootstrap, which are of one host.
  explicit SharedHost(Bootstrap& bootstrap);

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  std::byte* memory(int rank) const { return regions_ + static_cast<std::uint64_t>(rank) * SharedLayout::kRankBytes; }

  // More ranks than cores: who waits gives its core away at once.
  bool crowded() const { return crowded_; }

  // Whether this rank's slot and box for the call are empty: everybody has taken what was posted there before.
  bool has_room(std::uint64_t number);
  void post(std::uint64_t number, const Signature& signature, const Offer* offer) const;  // null: none is made
  // Whether the rank has posted the call. acquire: what it put into its box is seen.
  bool has_posted(int rank, std::uint64_t number);
  const Signature& posted(int rank, std::uint64_t number) const { return slot(rank, number).signature; }
  // Of a call for which offers are made.
  Offer offered(int rank, std::uint64_t number) const;
  // The last call that the rank has posted; 0 if none.
  std::uint64_t last_posted(int rank) const;

  void signal(std::uint64_t phase) const {
    // release: what was copied and reduced before is seen by who sees the phase.
    tell_handed(known_as(rank_));
    phase_of(rank_).store(phase, std::memory_order_release);
  }
  bool has_reached(int rank, std::uint64_t phase) const {
    const bool reached = phase_of(rank).load(std::memory_order_acquire) >= phase;  // acquire: see signal()
    if (reached) tell_taken(known_as(rank));
    return reached;
  }

  bool is_in(int rank, std::uint64_t phase) const {
    const bool in = phase_of(rank).load(std::memory_order_acquire) == phase;  // acquire: what it did before is seen
    tell_taken(known_as(rank));
    return in;
  }

  // The first failure of any rank.
  bool failed() const { return failure().state.load(std::memory_order_relaxed) != 0; }  // relaxed: why() acquires
  void fail(Code code, const std::string& text) const;                                  // the first one counts
  Error why() const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> number{0};
    Signature signature;
    std::byte data[SharedLayout::kInSlot];
  };
  static_assert(sizeof(Slot) == SharedLayout::kSlotBytes);
  struct Failure {
    std::atomic<std::uint32_t> state{0};  // 1: being written, 2: there
    std::int32_t code = 0;
    char text[1000] = {};
  };
  Slot& slot(int rank, std::uint64_t number) const {
    return reinterpret_cast<Slot*>(memory(rank))[number % SharedLayout::kTurns];
  }
  std::atomic<std::uint64_t>& phase_of(int rank) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory(rank) + SharedLayout::kPhase);
  }
  // A rank's memory as all ranks of this process name it to the thread sanitizer.
  std::byte* known_as(int rank) const { return common_ + static_cast<std::uint64_t>(rank) * SharedLayout::kRankBytes; }
  Failure& failure() const { return *reinterpret_cast<Failure*>(segment_.data()); }

  const int rank_, nranks_;
  Segment segment_;
  std::byte* regions_ = nullptr;
  std::byte* common_ = nullptr;  // see known_as(); only an address
  bool crowded_ = false;
  std::vector<std::uint64_t> known_;  // by rank: a call that it surely has posted
};

}  // namespace slip
