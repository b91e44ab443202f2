// SharedHost: one rank's side of the memory that the ranks of a host share: slots in which each posts its calls, the
// phase that each has reached, boxes, staging, and the first error of any of them, which then is everybody's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "comm/host/shared_memory.hpp"
#include "comm/link/pipe.hpp"
#include "comm/plan/host_program.hpp"
#include "transport/memory/segment.hpp"

namespace slip {

// Where peers find the buffers of a rank in one larger call. A rank publishes it when it posts the call; all ranks read
// the same values, so all choose the same path.
struct PublishedBuffers {
  std::uint64_t input = 0, output = 0;  // SharedAddress::offset
  ReduceScale scale = {};               // this rank's factor
  std::uint32_t input_segment = SharedAddress::kNowhere, output_segment = SharedAddress::kNowhere;
  PeerAccess access = PeerAccess::kNotNeeded;
  std::uint32_t unused = 0;
};
static_assert(sizeof(PublishedBuffers) == 40);

class SharedHost {
 public:
  // `members`: the ranks of this host, which all make theirs together. Only if they are all ranks of the bootstrap
  // there are slots, boxes and staging; pipes and the failure are there for any.
  SharedHost(Bootstrap& bootstrap, std::vector<int> members, int channels = 1);

  int rank() const { return rank_; }
  int nranks() const { return nranks_; }
  bool has(int rank) const { return index_of(rank) >= 0; }
  PipeMemory& pipe(int from, int to, int channel) const;
  std::byte* memory(int rank) const { return regions_ + static_cast<std::uint64_t>(rank) * StagingLayout::kRankBytes; }

  // Whether everybody has come to the call of that number, and so has ended all before it. Throws as compare() does.
  bool all_have_posted(std::uint64_t number);
  void post(std::uint64_t number, const Signature& signature, const PublishedBuffers* buffers);  // or null
  // Whether the rank has posted the call. acquire: what it put into its box is seen.
  bool has_posted(int rank, std::uint64_t number) {
    // A later call in the slot means this one, too.
    if (load_acquire(slot(rank, number).number) < number) return false;
    std::uint64_t& known = known_[static_cast<std::size_t>(rank)];
    known = std::max(known, number);
    return true;
  }
  const Signature& posted(int rank, std::uint64_t number) const { return slot(rank, number).signature; }
  // Throws CallMismatch if the rank posted another call than this rank under a number up to this one, which both have
  // posted. Each call is compared once with each rank, also those in which this rank did not wait for that one.
  //
  // The slots are still as they were. A rank compares call n before it posts n + kTurns. So while this rank compares n,
  // it has posted at most n + kTurns - 1, the others are at most kTurns - 1 calls further, and slot n is written again
  // with call n + kSlots.
  void compare(int rank, std::uint64_t number) {
    static_assert(StagingLayout::kSlots > 2 * (StagingLayout::kTurns - 1));
    std::uint64_t& done = compared_[static_cast<std::size_t>(rank)];
    for (; done < number; ++done) {
      const Signature &own = posted(rank_, done + 1), &other = posted(rank, done + 1);
      if (own != other) [[unlikely]]
        require_same(rank_, own, rank, other);
    }
  }
  // The same with all ranks that have come to this rank's last post: for calls that go another way.
  void compare_posted();
  // What the rank posted with the call, if ranks publish their buffers for it.
  PublishedBuffers published(int rank, std::uint64_t number) const;
  // The last call that the rank has posted; 0 if none.
  std::uint64_t last_posted(int rank) const;

  void signal(std::uint64_t phase) const {
    // release: what was copied and reduced before is seen by who sees the phase.
    phase_of(rank_).store(phase, std::memory_order_release);
  }
  bool has_reached(int rank, std::uint64_t phase) const {
    return load_acquire(phase_of(rank)) >= phase;  // acquire: see signal()
  }

  bool is_in(int rank, std::uint64_t phase) const {
    return load_acquire(phase_of(rank)) == phase;  // acquire: what it did before is seen
  }

  // The first failure of any rank.
  bool failed() const { return failure().state.load(std::memory_order_relaxed) != 0; }  // relaxed: why() acquires
  bool fail(Code code, const std::string& text) const;  // false: there was one before, which counts
  Error why() const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> number{0};
    Signature signature;
    std::byte data[StagingLayout::kInSlot];
  };
  static_assert(sizeof(Slot) == StagingLayout::kSlotBytes);
  struct Failure {
    std::atomic<std::uint32_t> state{0};  // 1: being written, 2: there
    std::int32_t code = 0;
    char text[1000] = {};
  };
  Slot& slot(int rank, std::uint64_t number) const {
    return reinterpret_cast<Slot*>(memory(rank))[number % StagingLayout::kSlots];
  }
  std::atomic<std::uint64_t>& phase_of(int rank) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory(rank) + StagingLayout::kPhase);
  }
  int index_of(int rank) const;  // among the members; -1: it is none
  Failure& failure() const { return *reinterpret_cast<Failure*>(segment_.data()); }

  const int rank_, nranks_;
  const std::vector<int> members_;  // in order
  const bool whole_;                // they are all ranks
  Segment segment_;
  std::byte* regions_ = nullptr;
  std::uint64_t posted_ = 0;             // this rank's last call
  std::vector<std::uint64_t> known_;     // by rank: a call that it surely has posted
  std::vector<std::uint64_t> compared_;  // by rank: the last call whose signature was compared with this rank's
};

}  // namespace slip
