// Programs of collectives between ranks of one host, which share memory. HostProgramBuilder chooses between two paths:
// StagedProgramBuilder stages the data in shared memory, DirectProgramBuilder works on the ranks' own buffers.
// ProgramRunner runs the program.
#pragma once

#include <algorithm>

#include "comm/api/call.hpp"
#include "comm/plan/primitive.hpp"

namespace slip::comm {

// The layout of one rank's staging memory. Offsets are in bytes from its begin. It holds, in this order:
//   slots    in which the rank posts its calls. Inputs of up to kInSlot bytes are in the slot itself, at kSlotData
//   phase    how far the rank has progressed in its calls
//   boxes    for the inputs of small calls
//   halves   two buffers for the chunks of larger calls
struct StagingLayout {
  static constexpr std::uint64_t kTurns = 8;   // number of boxes, used in turn: no rank is kTurns calls ahead of a peer
  static constexpr std::uint64_t kSlots = 16;  // number of slots, used in turn; see SharedHost::compare()
  static constexpr std::uint64_t kSlotBytes = 64, kInSlot = 40, kSlotData = 24;
  static constexpr std::uint64_t kPhase = kSlots * kSlotBytes;
  static constexpr std::uint64_t kBoxes = 4096, kBoxBytes = 16 << 10;
  static constexpr std::uint64_t kHalves = kBoxes + kTurns * kBoxBytes, kHalfBytes = 512 << 10;
  static constexpr std::uint64_t kRankBytes = kHalves + 2 * kHalfBytes;
};

// Collectives through staging memory: all ranks work at once, and each exchanges with all others.
//
// Small calls: each rank copies its whole input into a box of its staging memory and posts the call. Each rank then
// reads what it needs from the boxes. No rank waits until its peers have read its box: the boxes are used in turn, and
// a rank that posts call s has read all boxes of call s - 1.
//
// Larger calls go in chunks through two halves of staging memory. For each chunk a rank
//   A  copies in the bytes that peers need,
//   R  reduces its own slice from its input and the peers' staging memory, into its output and its own staging memory,
//   O  copies out the slices that peers have reduced.
// In stage k a rank waits until all peers have ended stage k - 1, then does O(k - 1), R(k) and A(k + 1). So there is
// one wait for each chunk. While A(k + 1) writes a half, O(k - 1) of a peer may still read that half, but other slices
// of it. R(k + 1) writes these slices, one wait later. Collectives that reduce nothing do O(k) instead of R(k). A(0)
// comes before the post, so the wait for the posts is also the wait for A(0). The halves also alternate from call to
// call: peers may still copy out the last chunk of the previous call, which is in the other half.
//
// A broadcast divides each half into pieces, so that peers copy out one piece while the root copies in the next. The
// root waits only before it fills a half again: all peers must have read the half.
class StagedProgramBuilder {
 public:
  // `number`: the call's number among the calls through shared memory. `chunks_before`: the sum of their chunks() so
  // far.
  StagedProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks);

  std::uint64_t number() const { return number_; }
  void set_number(std::uint64_t number) { number_ = number; }  // of a later call that is equal, and small
  static bool is_small(const Call& call, int nranks);
  // How many halves of staging memory the call fills. 0: a small call, which has one piece.
  std::uint64_t chunks() const { return small_ ? 0 : (chunks_ + in_half_ - 1) / in_half_; }
  std::uint64_t pieces() const {
    if (small_) return 1;
    return chunks_ + (ends_with_copies() ? 2 : 1);
  }
  // Adds the steps of one piece. The call consists of all pieces, in order.
  void write(std::uint64_t piece, Program& program) const;
  // Writes a small call as if its number were 0, so the program can be reused. To run it, add box_shift() to each
  // offset in staging memory.
  void write_small(Program& program, std::uint64_t shift = 0) const;
  std::uint64_t box_shift() const {  // 0 for larger calls
    if (!small_) return 0;
    return in_slot() ? number_ % Layout::kSlots * Layout::kSlotBytes : number_ % Layout::kTurns * Layout::kBoxBytes;
  }
  // Adds the copies that come before the post.
  void copy_in(std::uint64_t chunk, Program& program) const;
  // The parts of a small call in which the ranks publish buffers, too: write_small() without its waits and its post.
  // box_in() comes before the post, box_out() after the meeting.
  void box_in(Program& program, std::uint64_t shift) const;
  void copy_own(Program& program) const;  // this rank's block of an all_gather, gather or all_to_all
  void box_out(Program& program, std::uint64_t shift) const;
  bool is_small() const { return small_; }
  // The number of phases that the call signals. The next call continues to count from there.
  std::uint64_t phases() const { return small_ ? 0 : chunks_; }

 private:
  using Layout = StagingLayout;
  struct Span {  // in bytes: a part of the block, or the same part of each block
    std::uint64_t begin = 0, bytes = 0;
  };
  bool ends_with_copies() const { return call_.kind == Collective::kAllReduce || call_.kind == Collective::kReduce; }
  void open_broadcast(Program& program) const;
  void write_broadcast(std::uint64_t chunk, Program& program) const;
  void reduce(std::uint64_t chunk, Program& program) const;
  void copy_out(std::uint64_t chunk, Program& program) const;

  Span span(std::uint64_t chunk) const {
    const std::uint64_t begin = chunk * chunk_bytes_;
    return {begin, std::min(chunk_bytes_, block_ - begin)};
  }
  // The part of a chunk with `bytes` that the rank reduces.
  Span slice(std::uint64_t bytes, int rank) const {
    const std::uint64_t share = chunk_bytes_ / static_cast<std::uint64_t>(nranks_);
    const std::uint64_t begin = std::min(share * static_cast<std::uint64_t>(rank), bytes);
    return {begin, std::min(share, bytes - begin)};
  }
  BufferLocation half(int rank, std::uint64_t chunk, std::uint64_t offset) const {
    const std::uint64_t half = (chunks_before_ + chunk / in_half_) % 2;
    return {BufferSpace::kStaging, static_cast<std::uint16_t>(rank),
            Layout::kHalves + half * Layout::kHalfBytes + chunk % in_half_ * chunk_bytes_ + offset};
  }
  BufferLocation boxed(int from, std::uint64_t at, std::uint64_t shift) const {
    return {BufferSpace::kStaging, static_cast<std::uint16_t>(from),
            (in_slot() ? Layout::kSlotData : Layout::kBoxes) + shift + at};
  }
  // The offset of this rank's part in each peer's box.
  std::uint64_t own_part() const { return by_blocks_ ? static_cast<std::uint64_t>(rank_) * block_ : 0; }
  bool in_slot() const { return block_ * (by_blocks_ ? static_cast<std::uint64_t>(nranks_) : 1) <= Layout::kInSlot; }
  bool is_root() const { return rank_ == call_.root; }

  Call call_;
  int rank_, nranks_;
  std::uint64_t number_, chunks_before_, block_;
  bool small_ = false;
  bool by_blocks_ = false;  // a chunk is the same span of each rank's block
  std::uint64_t chunk_bytes_ = 0, chunks_ = 0;
  std::uint64_t in_half_ = 1;  // chunks that one half of staging memory holds
};

// Collectives directly on the ranks' buffers, if the ranks can reach all buffers that are needed. Nothing is staged,
// and each byte is read and written as few times as possible.
//
// Once a rank has joined the call, peers may access its buffers. A rank signals when it is done with its peers'
// buffers, and a rank whose buffers peers access waits for these signals. While a rank accesses peers' buffers (between
// kEnter and its kSignal) it waits for no rank. So a rank whose call fails can wait until its peers are done with its
// buffers; that wait is short. Afterwards only this rank uses them.
//   Reductions: rank r reduces slice r, or its block, from all inputs and writes it to every rank that needs it.
//   Copies: each rank reads what it needs from its peers. In a gather each rank writes instead, so that all ranks work
//   at once.
//
// If each rank only reads, the kernel can do it (process_vm_readv), also from buffers that peers cannot map. Then all
// ranks wait for all others, because a rank may find that the kernel refuses: in that case all ranks stage their data.
// A broadcast is not read by the kernel, see can_read().
class DirectProgramBuilder {
 public:
  // Of a block, by the kernel: for fewer bytes the system calls and the second wait take longer than two copies.
  static constexpr std::uint64_t kMinReadBytes = 8 << 10;
  static constexpr std::uint64_t kInside = 1, kOutside = 2;  // phases: the rank accesses peers' buffers; it is done

  DirectProgramBuilder(const Call& call, int rank, int nranks)
      : call_(call), rank_(rank), nranks_(nranks), block_(call.block_bytes()) {}

  // The buffers of a rank that its peers access.
  struct NeededBuffers {
    bool input = false, output = false;
  };
  static NeededBuffers needed_buffers(const Call& call, int rank);
  // Whether the choice of the path depends on the buffers of this rank.
  static bool depends_on(const Call& call, int rank) { return !from_root(call.kind) || rank == call.root; }
  static bool from_root(Collective kind) { return kind == Collective::kBroadcast || kind == Collective::kScatter; }
  // Whether the direct path is correct although input and output of this rank overlap: no rank may read bytes that
  // another rank has overwritten.
  static bool may_overlap(const Call& call, int rank, const std::byte* output, const std::byte* input);

  // Whether the kernel can do the call. Not reductions: a rank would have to read into memory of its own first, and to
  // read results once more; that was slower than staging.
  static bool can_read(const Call& call, int nranks);

  void write(Program& program) const;
  void write_reads(Program& program) const;  // by the kernel

 private:
  void reduce(Program& program) const;
  void copies(Program& program, int first, int end) const;
  bool is_root() const { return rank_ == call_.root; }
  bool enters() const {  // this rank accesses peers' buffers
    if (nranks_ == 1) return false;
    return is_root() ? !from_root(call_.kind) && call_.kind != Collective::kGather : true;
  }
  bool is_visited() const {  // peers access this rank's buffers
    const NeededBuffers mine = needed_buffers(call_, rank_);
    return nranks_ > 1 && (call_.kind == Collective::kGather ? is_root() : mine.input || mine.output);
  }
  BufferLocation input_of(int rank, std::uint64_t offset) const {
    return {rank == rank_ ? BufferSpace::kInput : BufferSpace::kPeerInput, static_cast<std::uint16_t>(rank), offset};
  }
  BufferLocation output_of(int rank, std::uint64_t offset) const {
    return {rank == rank_ ? BufferSpace::kOutput : BufferSpace::kPeerOutput, static_cast<std::uint16_t>(rank), offset};
  }

  Call call_;
  int rank_, nranks_;
  std::uint64_t block_;
};

// Whether the peers of a rank need its buffers in a call, and can reach them.
enum class PeerAccess : std::uint32_t {
  kNotNeeded,
  kUnreachable,  // needed, but the rank does not offer them
  kShared,       // peers have mapped them
  kReadable,     // peers read them through the kernel
};

enum class HostPath : std::uint8_t {
  kOpen,    // not chosen yet
  kStaged,  // all ranks staged their data before they posted
  kLate,    // some ranks stage their data after the posts, or all because the kernel refused a read
  kDirect,
  kRead,  // direct, and the kernel reads the buffers that peers cannot map
};

// Chooses the path of a call between ranks of one host and builds its program. Small calls, and calls with a needed
// buffer that peers cannot reach, are staged (StagedProgramBuilder). The others are direct (DirectProgramBuilder). If
// the kernel can read, each rank decides for its own buffers, also in small calls of at least kMinReadBytes: see
// CopyChoice.
//
// A rank that does not offer its buffers stages its data before it posts. So if no rank offers, the call needs no extra
// wait. A rank that offers its buffers posts at once. If only some ranks offer, they stage late, and all ranks wait
// once more.
class HostProgramBuilder {
 public:
  // The arguments are those of StagedProgramBuilder. `reads`: the kernel lets all ranks read each other's memory; the
  // same on all ranks.
  HostProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank, int nranks,
                     bool reads = false);
  // Sets whether this rank offers its buffers to its peers. REQUIRES: asks(), and no piece was written.
  void take(PeerAccess own) { own_ = own; }

  // Whether ranks offer their buffers for such a call. Not for a small call: staging it is faster than the second wait
  // for peers that the direct path needs.
  static bool asks(const Call& call, int nranks) {
    return call.kind != Collective::kBarrier && !StagedProgramBuilder::is_small(call, nranks);
  }
  bool asks() const { return asks_; }
  bool depends_on(int rank) const { return DirectProgramBuilder::depends_on(call_, rank); }
  // Chooses the path after the first piece, from the posts of the ranks for which depends_on() holds.
  struct Offers {
    bool any_unreachable = false, any_shared = false, any_readable = false;
    void add(PeerAccess access) {
      any_unreachable = any_unreachable || access == PeerAccess::kUnreachable;
      any_shared = any_shared || access == PeerAccess::kShared;
      any_readable = any_readable || access == PeerAccess::kReadable;
    }
  };
  void choose(const Offers& offers) {
    if (!offers.any_unreachable) path_ = offers.any_readable ? HostPath::kRead : HostPath::kDirect;
    else path_ = offers.any_shared || offers.any_readable ? HostPath::kLate : HostPath::kStaged;
  }
  // All ranks call it after the first piece of the path kRead, if a rank could not read: all stage their data late.
  void refuse() {
    path_ = HostPath::kLate;
    pieces_before_ = 2;
    phases_before_ = DirectProgramBuilder::kOutside;
  }
  HostPath path() const { return path_; }
  bool is_direct() const { return path_ == HostPath::kDirect || path_ == HostPath::kRead; }
  bool is_small() const { return staged_.is_small(); }

  std::uint64_t number() const { return staged_.number(); }
  const Call& call() const { return call_; }
  // This call comes again, as that number. REQUIRES: small, and not asks(): such a program depends on nothing else.
  void set_number(std::uint64_t number) { staged_.set_number(number); }
  std::uint64_t chunks() const { return staged_.chunks(); }
  std::uint64_t pieces() const {
    if (is_direct()) return 2;
    const std::uint64_t staged = asks_ && is_small() ? 2 : staged_.pieces();
    return staged + (path_ == HostPath::kLate ? pieces_before_ : 0);
  }
  void write(std::uint64_t piece, Program& program) const;
  void write_small(Program& program) const { staged_.write_small(program); }  // see StagedProgramBuilder
  std::uint64_t box_shift() const { return staged_.box_shift(); }
  std::uint64_t phases() const {
    if (is_direct()) return DirectProgramBuilder::kOutside;
    return staged_.phases() + (path_ == HostPath::kLate ? phases_before_ + 1 : 0);
  }

 private:
  void write_first(Program& program) const;
  void write_staged(std::uint64_t piece, Program& program) const;

  Call call_;
  int rank_;
  bool asks_;
  PeerAccess own_ = PeerAccess::kUnreachable;
  StagedProgramBuilder staged_;
  DirectProgramBuilder direct_;
  HostPath path_;
  // kLate: what comes before the late staging.
  std::uint64_t pieces_before_ = 1, phases_before_ = 0;
};

}  // namespace slip::comm
