#include "comm/plan/host_program.hpp"

namespace slip::comm {
namespace {

constexpr std::uint64_t kLine = 64;  // slices begin at cache lines, so that no two ranks write to the same line
// Pieces of a broadcast, in bytes: several, so that copies overlap, but so large that a copy takes longer than a
// signal.
constexpr std::uint64_t kPieces = 8, kMinPiece = 8 << 10, kMaxPiece = 64 << 10;

bool goes_by_blocks(Collective kind) {
  return kind == Collective::kReduceScatter || kind == Collective::kAllToAll || kind == Collective::kScatter;
}

}  // namespace

bool StagedProgramBuilder::is_small(const Call& call, int nranks) {
  return call.block_bytes() * (goes_by_blocks(call.kind) ? static_cast<std::uint64_t>(nranks) : 1) <= Layout::kBoxBytes;
}

StagedProgramBuilder::StagedProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before,
                                           int rank, int nranks)
    : call_(call),
      rank_(rank),
      nranks_(nranks),
      number_(number),
      chunks_before_(chunks_before),
      block_(call.block_bytes()) {
  const auto all = static_cast<std::uint64_t>(nranks);
  by_blocks_ = goes_by_blocks(call.kind);
  small_ = is_small(call, nranks);
  if (small_) return;
  if (call.kind == Collective::kBroadcast) {
    chunk_bytes_ = std::clamp((block_ / kPieces + kLine - 1) / kLine * kLine, kMinPiece, kMaxPiece);
    chunks_ = (block_ + chunk_bytes_ - 1) / chunk_bytes_;
    in_half_ = Layout::kHalfBytes / chunk_bytes_;
    return;
  }
  // Chunks have nearly the same size. A slice is a whole number of cache lines and has the same bounds in all chunks:
  // a rank copies a chunk into a half while peers may still read its slice of the chunk before last there.
  const std::uint64_t grain = by_blocks_ ? kLine : kLine * all;
  const std::uint64_t max_bytes =
      std::max((by_blocks_ ? Layout::kHalfBytes / all : Layout::kHalfBytes) / grain, 1UL) * grain;
  chunks_ = (block_ + max_bytes - 1) / max_bytes;
  if (chunks_ > 0) chunk_bytes_ = (block_ + chunks_ * grain - 1) / (chunks_ * grain) * grain;
}

void StagedProgramBuilder::write(std::uint64_t piece, Program& program) const {
  if (small_) return write_small(program, box_shift());
  if (call_.kind == Collective::kBroadcast)
    return piece == 0 ? open_broadcast(program) : write_broadcast(piece - 1, program);
  if (piece == 0) {
    program.room(1);
    copy_in(0, program);
    program.post();
    return program.meet();
  }
  const std::uint64_t stage = piece - 1;
  if (stage > 0) program.wait(stage);
  if (ends_with_copies()) {
    if (stage > 0) copy_out(stage - 1, program);
    if (stage < chunks_) reduce(stage, program);
  } else if (call_.kind == Collective::kReduceScatter) {
    reduce(stage, program);
  } else {
    copy_out(stage, program);
  }
  if (stage + 1 < chunks_) copy_in(stage + 1, program);
  if (stage < chunks_) program.signal(stage + 1);
}

void StagedProgramBuilder::copy_in(std::uint64_t chunk, Program& program) const {
  if (small_) return box_in(program, box_shift());
  const Span now = span(chunk);
  const auto own_half = [&](std::uint64_t offset) { return half(rank_, chunk, offset); };
  if (ends_with_copies()) {  // all but this rank's slice, in two copies
    const Span own = slice(now.bytes, rank_);
    program.copy(own_half(0), input_at(now.begin), own.begin);
    const std::uint64_t end = own.begin + own.bytes;
    program.copy(own_half(end), input_at(now.begin + end), now.bytes - end);
  } else if (by_blocks_) {
    for (int to = 0; (call_.kind != Collective::kScatter || is_root()) && to < nranks_; ++to) {
      const auto block = static_cast<std::uint64_t>(to);
      if (to != rank_) program.copy(own_half(block * chunk_bytes_), input_at(block * block_ + now.begin), now.bytes);
    }
  } else if (call_.kind == Collective::kAllGather || (call_.kind == Collective::kGather && !is_root()) ||
             (call_.kind == Collective::kBroadcast && is_root())) {
    program.copy(own_half(0), input_at(now.begin), now.bytes);
  }
}

void StagedProgramBuilder::open_broadcast(Program& program) const {
  if (is_root()) {
    program.room(1);
    program.copy(half(rank_, 0, 0), input_at(0), span(0).bytes);
    return program.post();
  }
  program.room(Layout::kTurns - 1);
  program.post();
  program.meet(static_cast<std::uint64_t>(call_.root));
}

// A rank that has signalled chunk k has copied it in (the root) or out (a peer). Before the root writes the half that
// the previous call filled, it waits for the posts of this call: a rank that has posted has ended the previous call.
void StagedProgramBuilder::write_broadcast(std::uint64_t chunk, Program& program) const {
  const Span now = span(chunk);
  if (!is_root()) {
    if (chunk > 0) program.wait(chunk + 1, static_cast<std::uint64_t>(call_.root));
    program.copy(output_at(now.begin), half(call_.root, chunk, 0), now.bytes);
    return program.signal(chunk + 1);
  }
  if (chunk == in_half_) program.meet();
  else if (chunk % in_half_ == 0 && chunk > in_half_) program.wait(chunk - in_half_);
  if (chunk > 0) program.copy(half(rank_, chunk, 0), input_at(now.begin), now.bytes);
  program.signal(chunk + 1);
  program.copy(output_at(now.begin), input_at(now.begin), now.bytes);
  // When the root's call ends, all chunks that peers have not copied out yet must be in one half: the next call uses
  // the other half.
  if (chunk + 1 == chunks_ && chunk >= in_half_) program.wait(chunk / in_half_ * in_half_);
}

void StagedProgramBuilder::reduce(std::uint64_t chunk, Program& program) const {
  const Span now = span(chunk);
  const bool scatters = call_.kind == Collective::kReduceScatter;
  const auto block = static_cast<std::uint64_t>(rank_);
  const Span own = scatters ? Span{0, now.bytes} : slice(now.bytes, rank_);
  if (own.bytes == 0) return;
  const bool rooted = call_.kind == Collective::kReduce;
  const bool to_output = !rooted || is_root(), to_staging = !scatters && !(rooted && is_root());
  const int targets = to_output && to_staging ? 2 : 1;
  const std::span<BufferLocation> places = program.reduce(targets, nranks_, own.bytes);
  if (to_output) places[0] = output_at(now.begin + own.begin);
  if (to_staging) places[static_cast<std::size_t>(targets) - 1] = half(rank_, chunk, own.begin);
  const auto sources = places.subspan(static_cast<std::size_t>(targets));
  for (int from = 0; from < nranks_; ++from) {
    const std::uint64_t offset = scatters ? block * chunk_bytes_ : own.begin;
    sources[static_cast<std::size_t>(from)] =
        from == rank_ ? input_at((scatters ? block * block_ : 0) + now.begin + own.begin) : half(from, chunk, offset);
  }
}

void StagedProgramBuilder::copy_out(std::uint64_t chunk, Program& program) const {
  const Span now = span(chunk);
  const bool scatters = call_.kind == Collective::kScatter;
  if ((call_.kind == Collective::kReduce || call_.kind == Collective::kGather) && !is_root()) return;
  for (int step = 0; step < nranks_; ++step) {
    const int from = (rank_ + step) % nranks_;  // each rank starts with itself, so ranks do not all read the same peer
    if (ends_with_copies()) {
      const Span made = slice(now.bytes, from);
      if (from != rank_) program.copy(output_at(now.begin + made.begin), half(from, chunk, made.begin), made.bytes);
    } else if (!scatters || from == call_.root) {
      const std::uint64_t own = by_blocks_ ? static_cast<std::uint64_t>(rank_) : 0;
      program.copy(output_at((scatters ? 0 : static_cast<std::uint64_t>(from) * block_) + now.begin),
                   from == rank_ ? input_at(own * block_ + now.begin) : half(from, chunk, own * chunk_bytes_),
                   now.bytes);
    }
  }
}

void StagedProgramBuilder::write_small(Program& program, std::uint64_t shift) const {
  program.room(Layout::kTurns - 1);
  box_in(program, shift);
  program.post();
  if (DirectProgramBuilder::from_root(call_.kind)) {
    if (!is_root()) program.meet(static_cast<std::uint64_t>(call_.root));
    return box_out(program, shift);
  }
  const bool to_root = call_.kind == Collective::kReduce || call_.kind == Collective::kGather;
  if (to_root && !is_root()) return;
  copy_own(program);  // before the wait: peers' data is still on its way
  program.meet();
  box_out(program, shift);
}

void StagedProgramBuilder::box_in(Program& program, std::uint64_t shift) const {
  const std::uint64_t blocks = by_blocks_ ? static_cast<std::uint64_t>(nranks_) : 1;
  if (!DirectProgramBuilder::from_root(call_.kind) || is_root())
    program.copy(boxed(rank_, 0, shift), input_at(0), block_ * blocks);
}

void StagedProgramBuilder::copy_own(Program& program) const {
  if (reduces(call_.kind) || DirectProgramBuilder::from_root(call_.kind)) return;
  program.copy(output_at(static_cast<std::uint64_t>(rank_) * block_), input_at(own_part()), block_);
}

void StagedProgramBuilder::box_out(Program& program, std::uint64_t shift) const {
  if (DirectProgramBuilder::from_root(call_.kind))
    return program.copy(output_at(0), is_root() ? input_at(own_part()) : boxed(call_.root, own_part(), shift), block_);
  if (!reduces(call_.kind)) {
    for (int from = 0; from < nranks_; ++from) {
      if (from != rank_)
        program.copy(output_at(static_cast<std::uint64_t>(from) * block_), boxed(from, own_part(), shift), block_);
    }
    return;
  }
  if (block_ == 0) return;
  const std::span<BufferLocation> places = program.reduce(1, nranks_, block_);
  places[0] = output_at(0);
  for (int from = 0; from < nranks_; ++from)
    places[1 + static_cast<std::size_t>(from)] = from == rank_ ? input_at(own_part()) : boxed(from, own_part(), shift);
}

DirectProgramBuilder::NeededBuffers DirectProgramBuilder::needed_buffers(const Call& call, int rank) {
  const bool root = rank == call.root;
  switch (call.kind) {
    case Collective::kAllReduce: return {true, true};
    case Collective::kReduce: return {true, root};
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kAllToAll: return {true, false};
    case Collective::kBroadcast:
    case Collective::kScatter: return {root, false};
    // Peers do not read the inputs of a gather. But each rank must decide before it posts whether to stage its data, so
    // all ranks offer a buffer.
    case Collective::kGather: return {!root, root};
    case Collective::kBarrier:
    case Collective::kMessage: break;
  }
  return {};
}

bool DirectProgramBuilder::may_overlap(const Call& call, int rank, const std::byte* output, const std::byte* input) {
  const std::uint64_t own = static_cast<std::uint64_t>(rank) * call.block_bytes();
  switch (call.kind) {
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast: return output == input;
    case Collective::kReduceScatter:
    case Collective::kScatter: return output == input + own;
    case Collective::kAllGather:
    case Collective::kGather: return input == output + own;
    case Collective::kAllToAll:
    case Collective::kBarrier:
    case Collective::kMessage: break;
  }
  return false;
}

bool DirectProgramBuilder::can_read(const Call& call, int nranks) {
  // Not a broadcast: the staged one copies into and out of staging memory at the same time, and was quicker at all
  // sizes where it was measured.
  const bool reads =
      call.kind == Collective::kScatter || call.kind == Collective::kAllGather || call.kind == Collective::kAllToAll;
  return reads && nranks > 1 && call.block_bytes() >= kMinReadBytes;
}

void DirectProgramBuilder::write(Program& program) const {
  if (enters()) program.enter(kInside);
  if (reduces(call_.kind)) reduce(program);
  else copies(program, 0, nranks_);
  if (enters()) program.signal(kOutside);
  if (is_visited()) program.wait(kOutside);
}

// Own blocks come last: peers wait until this rank has read theirs.
void DirectProgramBuilder::write_reads(Program& program) const {
  if (enters()) {
    program.enter(kInside);
    copies(program, 1, nranks_);
  }
  program.signal(kOutside);
  if (!from_root(call_.kind) || is_root()) copies(program, 0, 1);
  program.wait(kOutside);
}

void DirectProgramBuilder::reduce(Program& program) const {
  const auto own = static_cast<std::uint64_t>(rank_), all = static_cast<std::uint64_t>(nranks_);
  const bool scatters = call_.kind == Collective::kReduceScatter;
  // Slices are whole cache lines. If the buffers are aligned to cache lines, no two ranks write to the same line.
  const std::uint64_t share = scatters ? block_ : (block_ + all * kLine - 1) / (all * kLine) * kLine;
  const std::uint64_t begin = scatters ? own * block_ : std::min(own * share, block_);
  const std::uint64_t bytes = scatters ? block_ : std::min(share, block_ - begin);
  if (bytes == 0) return;
  const int targets = call_.kind == Collective::kAllReduce ? nranks_ : 1;
  const std::span<BufferLocation> locations = program.reduce(targets, nranks_, bytes);
  if (scatters) locations[0] = output_of(rank_, 0);
  else if (call_.kind == Collective::kReduce) locations[0] = output_of(call_.root, begin);
  else {
    for (int step = 0; step < nranks_; ++step)  // this rank's output is the first target: reduce() computes there
      locations[static_cast<std::size_t>(step)] = output_of((rank_ + step) % nranks_, begin);
  }
  for (int from = 0; from < nranks_; ++from)
    locations[static_cast<std::size_t>(targets + from)] = input_of(from, begin);
}

// The copies of the ranks from this one on, by their distance. A call with a root has one copy, at any distance.
void DirectProgramBuilder::copies(Program& program, int first, int end) const {
  const auto own = static_cast<std::uint64_t>(rank_);
  const auto root = call_.root;
  switch (call_.kind) {
    case Collective::kBroadcast: return program.copy(output_of(rank_, 0), input_of(root, 0), block_);
    case Collective::kScatter: return program.copy(output_of(rank_, 0), input_of(root, own * block_), block_);
    case Collective::kGather: return program.copy(output_of(root, own * block_), input_of(rank_, 0), block_);
    default: break;
  }
  for (int step = first; step < end; ++step) {
    const int from = (rank_ + step) % nranks_;  // each rank starts with itself, so ranks do not all read the same peer
    const std::uint64_t offset = call_.kind == Collective::kAllToAll ? own * block_ : 0;
    program.copy(output_of(rank_, static_cast<std::uint64_t>(from) * block_), input_of(from, offset), block_);
  }
}

HostProgramBuilder::HostProgramBuilder(const Call& call, std::uint64_t number, std::uint64_t chunks_before, int rank,
                                       int nranks, bool reads)
    : call_(call),
      rank_(rank),
      asks_(asks(call, nranks) || (reads && DirectProgramBuilder::can_read(call, nranks))),
      staged_(call, number, chunks_before, rank, nranks),
      direct_(call, rank, nranks),
      path_(asks_ ? HostPath::kOpen : HostPath::kStaged) {}

void HostProgramBuilder::write_first(Program& program) const {
  const bool offers = asks_ && own_ != PeerAccess::kUnreachable;
  if (!offers && !(asks_ && is_small())) return staged_.write(0, program);
  program.room(StagingLayout::kTurns - 1);
  if (!offers) staged_.box_in(program, box_shift());
  program.post();
  // The waits for the posts on which the choice of the path depends.
  if (!DirectProgramBuilder::from_root(call_.kind)) program.meet();
  else if (rank_ != call_.root) program.meet(static_cast<std::uint64_t>(call_.root));
}

// `piece`: of StagedProgramBuilder, after its first one.
void HostProgramBuilder::write_staged(std::uint64_t piece, Program& program) const {
  if (!is_small()) return staged_.write(piece, program);
  staged_.copy_own(program);
  staged_.box_out(program, box_shift());
}

void HostProgramBuilder::write(std::uint64_t piece, Program& program) const {
  if (piece == 0) return write_first(program);
  if (path_ == HostPath::kDirect) return direct_.write(program);
  if (path_ == HostPath::kRead) return direct_.write_reads(program);
  if (path_ == HostPath::kLate && piece == pieces_before_) {
    if (own_ != PeerAccess::kUnreachable) staged_.copy_in(0, program);
    program.signal(phases_before_ + 1);
    return program.wait(phases_before_ + 1);
  }
  // A staged scatter needs the posts of all ranks. A rank that offered its buffers has waited only for the root's post.
  if (asks_ && piece == 1 && call_.kind == Collective::kScatter && own_ != PeerAccess::kUnreachable) program.meet();
  if (path_ == HostPath::kStaged) return write_staged(piece, program);
  const std::size_t begin = program.steps.size();
  write_staged(piece - pieces_before_, program);
  for (std::size_t i = begin; i < program.steps.size(); ++i) {  // late staging was a phase, so all phases move
    Primitive& step = program.steps[i];
    if (step.kind == Primitive::Kind::kSignal || step.kind == Primitive::Kind::kWait) step.value += phases_before_ + 1;
  }
}

}  // namespace slip::comm
