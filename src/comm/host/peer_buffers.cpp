#include "comm/host/peer_buffers.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"

namespace slip::comm {
namespace {

// A failed rank waits this long for a peer in another process to stop accessing its buffers. There is a limit because
// that process may have been killed. 1 ns is added for each byte, the time of a copy at 1 GB/s.
constexpr std::int64_t kLeaveNs = 1'000'000'000;

bool overlap(const std::byte* a, std::uint64_t a_bytes, const std::byte* b, std::uint64_t b_bytes) {
  return a && b && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

PublishedBuffers PeerBuffers::find_own(bool hidden, bool is_small) const {
  const Call& call = call_.call;
  const int rank = context_.rank;
  const DirectProgramBuilder::NeededBuffers needs = DirectProgramBuilder::needed_buffers(call, rank);
  PublishedBuffers result;
  result.scale = call.scale;
  if (!needs.input && !needs.output) return result;
  const Blocks blocks = blocks_of(call, rank, context_.nranks);
  const std::uint64_t in = blocks.in * call.block_bytes(), out = blocks.out * call.block_bytes();
  result.access = PeerAccess::kUnreachable;
  if (overlap(call_.input, in, call_.output, out) &&
      !DirectProgramBuilder::may_overlap(call, rank, call_.output, call_.input))
    return result;
  // Pages that are hidden cannot be read through the kernel either.
  const bool may_read = context_.memory->can_read() && !hidden && DirectProgramBuilder::can_read(call, context_.nranks);
  const bool wants_read =
      may_read && context_.copy_choice.wants_read(call, context_.host->reads().other_way(call.kind));
  if (is_small && !wants_read) return result;
  const auto find = [&](const std::byte* data, std::uint64_t bytes) {
    const SharedAddress found = context_.memory->find(data, bytes, hidden);
    if (found.segment != SharedAddress::kNowhere || !wants_read) return found;
    return SharedAddress{reinterpret_cast<std::uintptr_t>(data), SharedAddress::kPrivate};
  };
  SharedAddress input, output;
  if (needs.input) input = find(call_.input, in);
  if (needs.output) output = context_.memory->find(call_.output, out, hidden);  // peers write there
  if ((needs.input && input.segment == SharedAddress::kNowhere) ||
      (needs.output && output.segment == SharedAddress::kNowhere))
    return result;
  const bool is_private = input.segment == SharedAddress::kPrivate;
  return {input.offset,  output.offset,  call.scale,
          input.segment, output.segment, is_private ? PeerAccess::kReadable : PeerAccess::kShared};
}

bool PeerBuffers::is_in_this_call(int rank) const {
  return context_.host->has_posted(rank, call_.host_number) &&
         context_.host->posted(rank, call_.host_number) == call_.signature;
}

// Whether all ranks that the choice of the path depends on have posted this call.
bool PeerBuffers::all_have_published(const HostProgramBuilder& plan) const {
  for (int rank = 0; rank < context_.nranks; ++rank) {
    if (rank != context_.rank && plan.depends_on(rank) && !is_in_this_call(rank)) return false;
  }
  return true;
}

std::byte* PeerBuffers::resolve(int rank, const SharedAddress& address, std::uint64_t blocks) const {
  if (address.segment == SharedAddress::kNowhere) return nullptr;
  if (address.segment == SharedAddress::kPrivate) return reinterpret_cast<std::byte*>(address.offset);
  const std::uint64_t bytes = blocks * call_.call.block_bytes();
  if (std::byte* const data = context_.memory->at(address, bytes)) return data;
  base::fail(ErrorCode::kInvalidValue, {},
             "rank {} names {} bytes at {} of segment {}, which rank {} does not have; in {}", rank, bytes,
             address.offset, address.segment, context_.rank, call_.signature.text());
}

void PeerBuffers::choose_path(HostProgramBuilder& plan) {
  HostProgramBuilder::Offers offers;
  const SharedHost& host = *context_.host;
  for (int rank = 0; rank < context_.nranks; ++rank) {
    if (!plan.depends_on(rank)) continue;
    offers.add(rank == context_.rank ? own_.access : host.published(rank, call_.host_number).access);
  }
  plan.choose(offers);
  if (!plan.is_direct()) return;
  for (int rank = 0; rank < context_.nranks; ++rank) {
    if (rank == context_.rank || !plan.depends_on(rank)) continue;
    const PublishedBuffers theirs = host.published(rank, call_.host_number);
    const Blocks blocks = blocks_of(call_.call, rank, context_.nranks);
    context_.running.peers[static_cast<std::size_t>(rank)] = {
        resolve(rank, {theirs.input, theirs.input_segment}, blocks.in),
        resolve(rank, {theirs.output, theirs.output_segment}, blocks.out), theirs.scale,
        theirs.input_segment == SharedAddress::kPrivate ? context_.memory->process_of(rank) : 0};
  }
}

// Store, fence, load on both sides: either this rank sees the failure of another rank, or that rank sees this one
// inside and waits in leave().
void PeerBuffers::enter(std::uint64_t phase) {
  context_.host->signal(phase);
  base::full_fence();
  if (context_.host->failed()) throw context_.host->why();
}

void PeerBuffers::require_unfailed() const {
  base::acquire_fence();  // the reads of the peers' buffers come before the following load
  if (context_.host->failed()) throw context_.host->why();
}

// Peers inside wait for no other rank, so they are soon outside, unless they were killed or stopped. A peer that
// reports an abort stays inside until it signals that it is outside.
void PeerBuffers::leave(HostProgramBuilder& plan) noexcept {
  SharedHost& host = *context_.host;
  const std::uint64_t inside = context_.running.phase + DirectProgramBuilder::kInside;
  base::full_fence();  // all ranks can see the failure before this rank reads their phases
  try {
    if (plan.path() == HostPath::kOpen) {
      if (!all_have_published(plan)) return;  // so no peer is inside, and a peer that enters later sees the failure
      choose_path(plan);
    }
    if (!plan.is_direct()) return;
    // If this rank is inside: a peer that sees this signal sees the failure, too.
    if (host.is_in(context_.rank, inside)) host.signal(context_.running.phase + DirectProgramBuilder::kOutside);
    // A peer in another process may access memory that this rank has freed: its own mapping stays valid. A peer in this
    // process must not, so this rank waits longer for it.
    const auto bytes = static_cast<std::int64_t>(call_.call.block_bytes()) * context_.nranks;
    const std::int64_t limit_ns = context_.memory->one_process() ? context_.timeout_ns : kLeaveNs + bytes;
    const std::int64_t deadline_ns = base::now_ns() + std::min(limit_ns, context_.timeout_ns);
    for (int rank = 0; rank < context_.nranks; ++rank) {
      if (rank != context_.rank && is_in_this_call(rank)) wait_until_outside(rank, inside, deadline_ns);
    }
  } catch (const std::exception&) {  // the first error has been reported already
  }
}

void PeerBuffers::wait_until_outside(int rank, std::uint64_t inside, std::int64_t deadline_ns) const {
  base::Backoff backoff;
  for (int look = 0; context_.host->is_in(rank, inside); ++look) {
    backoff.pause();
    if (look % 64 != 63) continue;
    const std::optional<transport::Loss> loss = context_.bootstrap.failures().first_loss();
    if (loss && loss->rank == rank && loss->cause != transport::Loss::Cause::kAborted) return;
    if (base::now_ns() > deadline_ns) return;
  }
}

}  // namespace slip::comm
