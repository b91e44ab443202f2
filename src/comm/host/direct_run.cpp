// SharedRun, as far as a call may be done where the ranks' buffers lie.
#include <fmt/format.h>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "comm/host/shared_run.hpp"

namespace slip {
namespace {

// How long a process is waited for that does not say it has left: it may have been killed, too. And 1 GB/s.
constexpr std::int64_t kRetreatNs = 1'000'000'000;

bool overlap(const std::byte* a, std::uint64_t a_bytes, const std::byte* b, std::uint64_t b_bytes) {
  return a && b && a < b + b_bytes && b < a + a_bytes;
}

}  // namespace

Offer SharedRun::make_offer(bool hidden) const {
  const int rank = calls_.rank;
  const DirectProgramBuilder::NeededBuffers needs = DirectProgramBuilder::needed_buffers(call_, rank);
  Offer offer;
  offer.scale = call_.scale;
  if (!needs.input && !needs.output) return offer;
  const Blocks blocks = blocks_of(call_, rank, calls_.nranks);
  const std::uint64_t in = blocks.in * call_.block_bytes(), out = blocks.out * call_.block_bytes();
  offer.stance = Stance::kPrivate;
  if (overlap(input_, in, output_, out) && !DirectProgramBuilder::may_overlap(call_, rank, output_, input_))
    return offer;
  if (needs.input) {
    const Reach reach = calls_.memory->find(input_, in, hidden);
    if (reach.segment == Reach::kNowhere) return offer;
    offer.input = reach.offset;
    offer.input_segment = reach.segment;
  }
  if (needs.output) {
    const Reach reach = calls_.memory->find(output_, out, hidden);
    if (reach.segment == Reach::kNowhere) return offer;
    offer.output = reach.offset;
    offer.output_segment = reach.segment;
  }
  offer.stance = Stance::kOffered;
  return offer;
}

// Who has not, or asks for something else, is not in this call.
bool SharedRun::has_posted_the_same(int rank) const {
  return calls_.host->has_posted(rank, slot_) && calls_.host->posted(rank, slot_) == signature_;
}

// Whether all have posted on peer the path depends.
bool SharedRun::offers_are_there(const HostProgramBuilder& plan) const {
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    if (rank != calls_.rank && plan.depends_on(rank) && !has_posted_the_same(rank)) return false;
  }
  return true;
}

void SharedRun::choose_path(HostProgramBuilder& plan) {
  bool any_private = false, any_offered = false;
  const SharedHost& host = *calls_.host;
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    if (!plan.depends_on(rank)) continue;
    const Stance stance = rank == calls_.rank ? offer_.stance : host.offered(rank, slot_).stance;
    any_private = any_private || stance == Stance::kPrivate;
    any_offered = any_offered || stance == Stance::kOffered;
  }
  plan.choose(any_private, any_offered);
  if (plan.path() != HostPath::kDirect) return;
  for (int rank = 0; rank < calls_.nranks; ++rank) {
    if (rank == calls_.rank || !plan.depends_on(rank)) continue;
    const Offer offer = host.offered(rank, slot_);
    const Blocks blocks = blocks_of(call_, rank, calls_.nranks);
    const auto resolve = [&](std::uint32_t segment, std::uint64_t offset, std::uint64_t count) -> std::byte* {
      if (segment == Reach::kNowhere) return nullptr;
      std::byte* const data = calls_.memory->at({offset, segment}, count * call_.block_bytes());
      if (data) return data;
      throw Error(Code::kInvalidValue,
                  fmt::format("rank {} names {} bytes at {} of segment {}, which rank {} does not have; in {}", rank,
                              count * call_.block_bytes(), offset, segment, calls_.rank, signature_.text()),
                  {});
    };
    calls_.peers[static_cast<std::size_t>(rank)] = {resolve(offer.input_segment, offer.input, blocks.in),
                                                    resolve(offer.output_segment, offer.output, blocks.out),
                                                    offer.scale};
  }
}

// Either this rank sees that another has failed, or that one sees it inside and waits: see retreat().
void SharedRun::enter(std::uint64_t phase) {
  calls_.host->signal(phase);
  full_fence();
  if (calls_.host->failed()) throw calls_.host->why();
}

// A rank that failed has its buffers for itself again, and may have written to them what was then read here.
void SharedRun::require_sound() const {
  acquire_fence();  // what was read before was read before the look
  if (calls_.host->failed()) throw calls_.host->why();
}

// This rank leaves a call that failed: its buffers are the caller's again. Who is at its buffers is waited for: it
// waits for nobody itself and is soon done, unless it was killed or stopped; one that only says that it gives up is
// there until it leaves.
void SharedRun::retreat() noexcept {
  if (!begun_) return;  // the links are another call's
  calls_.links.close();
  auto* const plan = std::get_if<HostProgramBuilder>(&plan_);
  if (!plan || !plan->asks()) return;
  SharedHost& host = *calls_.host;
  const std::uint64_t inside = calls_.phase + DirectProgramBuilder::kInside;
  full_fence();  // the failure is there for all, before the looks at others
  try {
    if (plan->path() == HostPath::kOpen) {
      if (!offers_are_there(*plan)) return;  // so nobody is inside, and who comes later sees the failure
      choose_path(*plan);
    }
    if (plan->path() != HostPath::kDirect) return;
    // If it is inside itself: others that see it leave see the failure, too.
    if (host.is_in(calls_.rank, inside)) host.signal(calls_.phase + DirectProgramBuilder::kOutside);
    // Processes that are at memory of a rank which has freed it do no harm; threads would.
    const auto bytes = static_cast<std::int64_t>(call_.block_bytes()) * calls_.nranks;
    const std::int64_t patience = calls_.memory->one_process() ? calls_.timeout_ns : kRetreatNs + bytes;
    const std::int64_t deadline = now_ns() + std::min(patience, calls_.timeout_ns);
    for (int rank = 0; rank < calls_.nranks; ++rank) {
      if (rank == calls_.rank || !has_posted_the_same(rank)) continue;
      for (int turn = 0; host.is_in(rank, inside); ++turn) {
        spin(turn);
        const std::optional<Loss> loss = turn % 64 == 63 ? calls_.bootstrap.lost() : std::nullopt;
        if ((loss && loss->rank == rank && loss->cause != Loss::Cause::kAborted) ||
            (turn % 64 == 63 && now_ns() > deadline))
          break;
      }
    }
  } catch (const std::exception&) {  // the first error is told
  }
}

}  // namespace slip
