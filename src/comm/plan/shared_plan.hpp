// How ranks of one host do a collective through memory that they share: all at once, each with all others.
//
// Small calls: each rank puts its whole input into a box and posts it; everybody takes what it needs from the boxes. No
// rank waits for another to have taken something: boxes go round, and a rank that posts call s has taken all of s - 1.
//
// Others go in chunks through two halves of staging memory. For a chunk each rank
//   A  copies in what others need of it,
//   R  reduces its own slice of it from its input and the others' staging, into its output and its own staging,
//   O  copies out what others made.
// Stage k of a rank is: wait until all others have ended stage k - 1, then O(k - 1), R(k), A(k + 1): one wait a chunk.
// A(k + 1) writes the half that O(k - 1) of others may still read, but not the same slices of it; R(k + 1), which
// writes those, comes one wait later. Collectives that reduce nothing have O(k) in the place of R(k). A(0) comes before
// the call is posted, so that meeting is its wait. Halves take turns from call to call, too: others may still copy out
// the last chunk of the call before, which is in the other half.
//
// A broadcast goes in pieces of a half, so that the others copy out one while the root copies in the next. The root
// waits for nobody but for room: that all have ended what was in the half before.
#pragma once

#include "comm/api/call.hpp"
#include "comm/plan/primitive.hpp"

namespace slip {

// The memory of a rank in a segment, in bytes from its begin.
struct SharedLayout {
  static constexpr std::uint64_t kTurns = 8;   // boxes, by the call's number: a rank is at most kTurns - 1 calls ahead
  static constexpr std::uint64_t kSlots = 16;  // by the call's number, too; see SharedHost::compare()
  static constexpr std::uint64_t kSlotBytes = 64, kInSlot = 40, kSlotData = 24;
  static constexpr std::uint64_t kPhase = kSlots * kSlotBytes;
  static constexpr std::uint64_t kBoxes = 4096, kBoxBytes = 16 << 10;
  static constexpr std::uint64_t kHalves = kBoxes + kTurns * kBoxBytes, kHalfBytes = 512 << 10;
  static constexpr std::uint64_t kRankBytes = kHalves + 2 * kHalfBytes;
};

class SharedPlan {
 public:
  // `number`: among the calls that are done so; `chunks_before`: chunks() of all of them before this one.
  SharedPlan(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks);

  std::uint64_t number() const { return number_; }
  static bool is_small(const Call& call, int nranks);
  // Halves of staging that it fills: those of the next call come after them. 0: a small call, of one piece.
  std::uint64_t chunks() const { return small_ ? 0 : (chunks_ + in_half_ - 1) / in_half_; }
  std::uint64_t pieces() const {
    if (small_) return 1;
    return chunks_ + (ends_with_copies() ? 2 : 1);
  }
  // Adds the program of a piece: the call is all of them, in their order.
  void write(std::uint64_t piece, Program& program) const;
  // A small call: the same for all numbers. Its places of staging memory lie box_shift() further on.
  void write_small(Program& program) const { write_small(program, 0); }
  std::uint64_t box_shift() const;  // 0 for others
  // Adds what the first piece has before the call is posted; not of a broadcast.
  void copy_in(std::uint64_t chunk, Program& program) const;
  // Phases that are signalled in the whole call: the next one's come after them.
  std::uint64_t phases() const { return small_ ? 0 : chunks_; }

 private:
  struct Span {  // of a chunk, in bytes: of the block, or of each block
    std::uint64_t begin = 0, bytes = 0;
  };
  bool ends_with_copies() const { return call_.kind == Collective::kAllReduce || call_.kind == Collective::kReduce; }
  void write_small(Program& program, std::uint64_t shift) const;
  void open_broadcast(Program& program) const;
  void write_broadcast(std::uint64_t chunk, Program& program) const;
  void reduce(std::uint64_t chunk, Program& program) const;
  void copy_out(std::uint64_t chunk, Program& program) const;

  Span span(std::uint64_t chunk) const;
  Span slice(std::uint64_t bytes, int rank) const;
  Place half(int rank, std::uint64_t chunk, std::uint64_t offset) const;
  bool in_slot() const;
  bool is_root() const { return rank_ == call_.root; }

  Call call_;
  int rank_, nranks_;
  std::uint64_t number_, chunks_before_, block_;
  bool small_ = false;
  bool by_blocks_ = false;  // a chunk is the same span of each block, which is what one rank gets
  std::uint64_t chunk_bytes_ = 0, chunks_ = 0;
  std::uint64_t in_half_ = 1;  // chunks that one half of staging holds
};

}  // namespace slip
