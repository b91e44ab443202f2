// SharedHost: one rank's view of the memory segment that the ranks of a host share. The segment holds for each rank its
// staging memory: the slots in which it posts its calls, and the phase that it has reached (StagingLayout). It holds
// pipes for each pair of ranks, and one failure: the first error of any rank becomes the error of all.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "comm/api/call.hpp"
#include "comm/host/shared_memory.hpp"
#include "comm/link/pipe.hpp"
#include "comm/plan/host_program.hpp"
#include "transport/memory/segment.hpp"

namespace slip::comm {

// Where peers find the buffers of a rank in one call that is not small. A rank publishes it when it posts the call. All
// ranks read the same values, so they choose the same path.
struct PublishedBuffers {
  std::uint64_t input = 0, output = 0;  // SharedAddress::offset
  ReduceScale scale = {};               // this rank's factor
  std::uint32_t input_segment = SharedAddress::kNowhere, output_segment = SharedAddress::kNowhere;
  PeerAccess access = PeerAccess::kNotNeeded;
  std::uint32_t unused = 0;
};
static_assert(sizeof(PublishedBuffers) == 40);

// What the ranks of a host share about calls in which the kernel reads private memory of peers. relaxed, all of it: the
// phases order a refusal, and the rest are hints.
class alignas(64) KernelReads {
 public:
  using Hint = std::atomic<std::uint32_t>;

  // The kernel did not let this rank read in the call. Before SharedHost::signal(): ranks that have seen that phase see
  // the refusal.
  void refuse(std::uint64_t number) { refused_.store(number, std::memory_order_relaxed); }
  bool refused(std::uint64_t number) const { return refused_.load(std::memory_order_relaxed) == number; }
  // See CopyChoice: one bit for each size class.
  Hint& other_way(Collective kind) { return other_way_[static_cast<std::size_t>(kind)]; }

 private:
  std::atomic<std::uint64_t> refused_{0};  // the number of the last call with a refused read
  std::array<Hint, static_cast<std::size_t>(Collective::kMessage)> other_way_{};
};

class SharedHost {
 public:
  // `members`: the ranks of this host, which construct theirs together. Slots, phases and staging memory exist only if
  // the members are all ranks of the bootstrap; pipes and the failure exist always.
  SharedHost(transport::Bootstrap& bootstrap, std::vector<int> members, int channels = 1, bool may_read = true);

  bool has(int rank) const { return index_of(rank) >= 0; }
  PipeMemory& pipe(int from, int to, int channel) const;
  std::byte* memory(int rank) const { return regions_ + static_cast<std::uint64_t>(rank) * StagingLayout::kRankBytes; }

  // Whether all ranks have posted the call, and so have ended all calls before it. Throws as compare() does.
  bool all_have_posted(std::uint64_t number);
  void post(std::uint64_t number, const Signature& signature, const PublishedBuffers* buffers);  // or null
  // Whether the rank has posted the call. acquire: the rank's staged input is visible.
  bool has_posted(int rank, std::uint64_t number) {
    // If the slot has a later call, the rank has posted this one before.
    if (base::load_acquire(slot(rank, number).number) < number) return false;
    std::uint64_t& known = known_[static_cast<std::size_t>(rank)];
    known = std::max(known, number);
    return true;
  }
  const Signature& posted(int rank, std::uint64_t number) const { return slot(rank, number).signature; }
  // Throws CallMismatch if the two ranks posted different calls under a number up to this one. REQUIRES: both ranks
  // have posted call `number`. Each call is compared once with each rank, even if the call itself did not wait for that
  // rank.
  //
  // No slot that is compared has been overwritten. A rank compares call n before it posts call n + kTurns. So while
  // this rank compares call n, it has posted call n + kTurns - 1 at the latest. The others are at most kTurns - 1 calls
  // ahead of it. Only call n + kSlots overwrites the slot of call n.
  void compare(int rank, std::uint64_t number) {
    static_assert(StagingLayout::kSlots > 2 * (StagingLayout::kTurns - 1));
    std::uint64_t& done = compared_[static_cast<std::size_t>(rank)];
    for (; done < number; ++done) {
      const Signature &own = posted(rank_, done + 1), &other = posted(rank, done + 1);
      if (own != other) [[unlikely]]
        require_same(rank_, own, rank, other);
    }
  }
  // Compares with all ranks that have posted the call that this rank posted last. For calls by messages, which do not
  // post.
  void compare_posted();
  // The buffers that the rank published when it posted the call. REQUIRES: ranks publish buffers for this call.
  PublishedBuffers published(int rank, std::uint64_t number) const;
  // The last call that the rank has posted; 0 if none.
  std::uint64_t last_posted(int rank) const;

  void signal(std::uint64_t phase) const {
    // release: a rank that sees the phase sees what this rank copied and reduced before.
    phase_of(rank_).store(phase, std::memory_order_release);
  }
  bool has_reached(int rank, std::uint64_t phase) const {
    return base::load_acquire(phase_of(rank)) >= phase;  // acquire: see signal()
  }

  bool is_in(int rank, std::uint64_t phase) const {
    return base::load_acquire(phase_of(rank)) == phase;  // acquire: see signal()
  }

  // Whether the kernel may copy private memory of this rank to its peers.
  bool may_read() const { return may_read_; }
  KernelReads& reads() const { return header().reads; }

  // The first failure of any rank of this host.
  bool failed() const { return failure().state.load(std::memory_order_relaxed) != 0; }  // relaxed: why() acquires
  bool fail(ErrorCode code, const std::string& text) const;  // false: a rank has failed before; its failure is kept
  Error why() const;

 private:
  struct Slot {
    std::atomic<std::uint64_t> number{0};
    Signature signature;
    std::byte data[StagingLayout::kInSlot];
  };
  static_assert(sizeof(Slot) == StagingLayout::kSlotBytes);
  struct Failure {
    std::atomic<std::uint32_t> state{0};  // 1: being written, 2: written
    std::int32_t code = 0;
    char text[1000] = {};
  };
  Slot& slot(int rank, std::uint64_t number) const {
    return reinterpret_cast<Slot*>(memory(rank))[number % StagingLayout::kSlots];
  }
  std::atomic<std::uint64_t>& phase_of(int rank) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(memory(rank) + StagingLayout::kPhase);
  }
  struct Header {
    Failure failure;
    KernelReads reads;
  };
  int index_of(int rank) const;  // among the members; -1: not a member
  Header& header() const { return *reinterpret_cast<Header*>(segment_.data()); }
  Failure& failure() const { return header().failure; }

  const int rank_, nranks_;
  const std::vector<int> members_;  // in ascending order
  const bool whole_;                // the members are all ranks
  const bool may_read_;
  transport::Segment segment_;
  std::byte* regions_ = nullptr;
  std::uint64_t posted_ = 0;             // this rank's last call
  std::vector<std::uint64_t> known_;     // by rank: the last call whose post this rank has seen
  std::vector<std::uint64_t> compared_;  // by rank: the last call that was compared
};

}  // namespace slip::comm
