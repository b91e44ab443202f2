#include "comm/shared_host.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/cores.hpp"
#include "base/sync.hpp"

namespace slip {
namespace {

constexpr std::size_t kHeaderBytes = 4096;

std::vector<int> all_ranks(int nranks) {
  std::vector<int> ranks(static_cast<std::size_t>(nranks));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

SharedHost::SharedHost(Bootstrap& bootstrap)
    : rank_(bootstrap.rank()),
      nranks_(bootstrap.nranks()),
      segment_(Segment::share(bootstrap, all_ranks(nranks_),
                              kHeaderBytes + static_cast<std::size_t>(nranks_) * SharedLayout::kRankBytes)),
      regions_(segment_.data() + kHeaderBytes),
      common_(regions_),
      known_(static_cast<std::size_t>(nranks_), 0) {
  CoreSet cores;
  for (const CoreSet& one : bootstrap.all_gather(core_set())) cores |= one;
  crowded_ = static_cast<std::size_t>(nranks_) > cores.count();
#if defined(__SANITIZE_THREAD__)
  const std::vector<std::byte*> bases = bootstrap.all_gather(regions_);
  const std::vector<Placement>& placements = bootstrap.placements();
  for (std::size_t rank = placements.size(); rank-- > 0;) {  // of the first rank in this process
    if (same_process(placements[rank], placements[static_cast<std::size_t>(rank_)])) common_ = bases[rank];
  }
#endif
  static_assert(sizeof(Failure) <= kHeaderBytes);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // so it means the same in every process
}

bool SharedHost::has_room(std::uint64_t number) {
  // Who has posted call n has taken all of call n - 1.
  const std::uint64_t needed = number < SharedLayout::kTurns ? 0 : number - SharedLayout::kTurns + 1;
  for (int rank = 0; rank < nranks_; ++rank) {
    if (rank != rank_ && known_[static_cast<std::size_t>(rank)] < needed && !has_posted(rank, needed)) return false;
  }
  return true;
}

void SharedHost::post(std::uint64_t number, const Signature& signature, const Offer* offer) const {
  Slot& own = slot(rank_, number);
  own.signature = signature;
  static_assert(sizeof(Offer) <= sizeof(own.data));
  if (offer) std::memcpy(own.data, offer, sizeof(Offer));
  tell_handed(known_as(rank_));
  own.number.store(number, std::memory_order_release);  // the signature and the box are seen by who sees the number
}

bool SharedHost::has_posted(int rank, std::uint64_t number) {
  std::uint64_t& known = known_[static_cast<std::size_t>(rank)];
  // A later call in the slot means this one, too.
  if (slot(rank, number).number.load(std::memory_order_acquire) < number) return false;
  tell_taken(known_as(rank));
  known = std::max(known, number);
  return true;
}

Offer SharedHost::offered(int rank, std::uint64_t number) const {
  Offer offer;
  std::memcpy(&offer, slot(rank, number).data, sizeof(offer));
  return offer;
}

std::uint64_t SharedHost::last_posted(int rank) const {
  std::uint64_t last = 0;
  for (std::uint64_t turn = 0; turn < SharedLayout::kTurns; ++turn)
    last = std::max(last, slot(rank, turn).number.load(std::memory_order_acquire));
  return last;
}

void SharedHost::fail(Code code, const std::string& text) const {
  std::uint32_t none = 0;
  // relaxed: only who is first matters; the text is published below.
  if (!failure().state.compare_exchange_strong(none, 1, std::memory_order_relaxed)) return;
  failure().code = static_cast<std::int32_t>(code);
  const std::size_t bytes = std::min(text.size(), sizeof(failure().text) - 1);
  std::memcpy(failure().text, text.data(), bytes);
  failure().text[bytes] = 0;
  failure().state.store(2, std::memory_order_release);
}

Error SharedHost::why() const {
  // A rank that was killed while it wrote leaves the text unfinished: not waited for long.
  for (int turn = 0; turn < 10'000 && failure().state.load(std::memory_order_acquire) != 2; ++turn) spin(turn);
  if (failure().state.load(std::memory_order_acquire) != 2)
    return {Code::kRankLost, "a rank failed and could not say why", {}};
  return {static_cast<Code>(failure().code), failure().text, {}};
}

}  // namespace slip
