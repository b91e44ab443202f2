// Programs of collectives between ranks of one host, which share memory. HostProgramBuilder chooses between two ways
// and CallRun runs the result: StagedProgramBuilder stages the data in shared memory, DirectProgramBuilder works on
// the ranks' own buffers.
#pragma once

#include "comm/api/call.hpp"
#include "comm/plan/primitive.hpp"

namespace slip {

// The memory of a rank in a segment, in bytes from its begin.
struct StagingLayout {
  static constexpr std::uint64_t kTurns = 8;   // boxes, by the call's number: a rank is at most kTurns - 1 calls ahead
  static constexpr std::uint64_t kSlots = 16;  // by the call's number, too; see SharedHost::compare()
  static constexpr std::uint64_t kSlotBytes = 64, kInSlot = 40, kSlotData = 24;
  static constexpr std::uint64_t kPhase = kSlots * kSlotBytes;
  static constexpr std::uint64_t kBoxes = 4096, kBoxBytes = 16 << 10;
  static constexpr std::uint64_t kHalves = kBoxes + kTurns * kBoxBytes, kHalfBytes = 512 << 10;
  static constexpr std::uint64_t kRankBytes = kHalves + 2 * kHalfBytes;
};

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
class StagedProgramBuilder {
 public:
  // `number`: among the calls that are done so; `chunks_before`: chunks() of all of them before this one.
  StagedProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks);

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
  BufferLocation half(int rank, std::uint64_t chunk, std::uint64_t offset) const;
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

// How ranks of one host do a collective where their buffers lie, if all can reach those that are needed: nothing is
// staged, each byte is read and written the least possible number of times.
//
// A rank that has come lets the others at its buffers; one that has ended with others' says so, and nobody leaves whose
// buffers are still in use. While a rank is at others' buffers (between kEnter and its kSignal) it waits for nobody, so
// that who fails can wait for it and then has its buffers for itself again.
//   Reductions: rank r reduces slice r, or its block, from all inputs and writes it to whom it belongs.
//   Copies: everybody fetches what it gets; in gather everybody brings, so that not the root alone is at work.
class DirectProgramBuilder {
 public:
  static constexpr std::uint64_t kInside = 1, kOutside = 2;  // phases

  DirectProgramBuilder(const Call& call, int rank, int nranks)
      : call_(call), rank_(rank), nranks_(nranks), block_(call.block_bytes()) {}

  // What the others need of a rank where it lies.
  struct NeededBuffers {
    bool input = false, output = false;
  };
  static NeededBuffers needed_buffers(const Call& call, int rank);
  // Whose offers decide for all.
  static bool depends_on(const Call& call, int rank) { return !from_root(call.kind) || rank == call.root; }
  static bool from_root(Collective kind) { return kind == Collective::kBroadcast || kind == Collective::kScatter; }
  // Input and output of this rank may be one if they lie so that nobody reads what another has overwritten.
  static bool may_overlap(const Call& call, int rank, const std::byte* output, const std::byte* input);

  void write(Program& program) const;

 private:
  void reduce(Program& program) const;
  void copies(Program& program) const;
  bool is_root() const { return rank_ == call_.root; }
  bool enters() const;      // touches what is others'
  bool is_visited() const;  // others touch what is its own
  BufferLocation input_of(int rank, std::uint64_t offset) const;
  BufferLocation output_of(int rank, std::uint64_t offset) const;

  Call call_;
  int rank_, nranks_;
  std::uint64_t block_;
};

// Whether the peers of a rank need its buffers in a call, and can reach them.
enum class PeerAccess : std::uint32_t {
  kNotNeeded,
  kUnreachable,  // needed, but the peers cannot map them
  kShared,
};

enum class HostPath : std::uint8_t {
  kOpen,    // not chosen yet
  kStaged,  // all have staged
  kLate,    // some still have to
  kDirect,
};

// HostProgramBuilder: which way a call between ranks of one host goes, and its program. Small calls and those with
// buffers that others cannot reach are staged (StagedProgramBuilder); if all that is needed can be reached, they are
// done in place (DirectProgramBuilder).
//
// A rank that offers its buffers does not stage before it posts, a rank that does not offer them does, as if there were
// no other way. So nothing is lost where nobody offers. If only some do, they stage late, and all wait once more.
class HostProgramBuilder {
 public:
  // As StagedProgramBuilder's.
  HostProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks);
  // What this rank offers, if the call asks for it; before the first piece.
  void take(PeerAccess own) { own_ = own; }

  // Whether ranks make offers for such a call: below some size staging takes less time than meeting twice.
  static bool asks(const Call& call, int nranks);
  bool asks() const { return asks_; }
  bool depends_on(int rank) const { return DirectProgramBuilder::depends_on(call_, rank); }
  // After the first piece, by what those have posted that it depends on.
  void choose(bool any_private, bool any_offered);
  HostPath path() const { return path_; }

  std::uint64_t number() const { return shared_.number(); }
  std::uint64_t chunks() const { return shared_.chunks(); }
  std::uint64_t pieces() const;
  void write(std::uint64_t piece, Program& program) const;
  void write_small(Program& program) const { shared_.write_small(program); }  // see StagedProgramBuilder
  std::uint64_t box_shift() const { return shared_.box_shift(); }
  std::uint64_t phases() const;

 private:
  Call call_;
  int rank_;
  bool asks_;
  PeerAccess own_ = PeerAccess::kUnreachable;
  StagedProgramBuilder shared_;
  DirectProgramBuilder direct_;
  HostPath path_;
};

}  // namespace slip
