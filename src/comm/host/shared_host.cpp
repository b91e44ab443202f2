#include "comm/host/shared_host.hpp"

#include <cstring>
#include <utility>

namespace slip::comm {
namespace {

constexpr std::size_t kHeaderBytes = 4096;

// Untouched memory of a segment costs nothing, so each pair of ranks and each channel has a pipe from the start.
constexpr std::size_t kPipeBytes = (sizeof(PipeMemory) + 4095) / 4096 * 4096;

std::size_t segment_bytes(std::size_t members, bool whole, std::size_t channels) {
  return kHeaderBytes + (whole ? members * StagingLayout::kRankBytes : 0) + channels * members * members * kPipeBytes;
}

}  // namespace

SharedHost::SharedHost(transport::Bootstrap& bootstrap, std::vector<int> members, int channels, bool may_read)
    : rank_(bootstrap.rank()),
      nranks_(bootstrap.nranks()),
      members_(std::move(members)),
      whole_(members_.size() == static_cast<std::size_t>(nranks_)),
      may_read_(may_read),
      segment_(transport::Segment::share(bootstrap, members_,
                                         segment_bytes(members_.size(), whole_, static_cast<std::size_t>(channels)))),
      regions_(segment_.data() + kHeaderBytes),
      known_(static_cast<std::size_t>(nranks_), 0),
      compared_(known_) {
  static_assert(sizeof(Header) <= kHeaderBytes);
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free);  // so that it works between processes
}

int SharedHost::index_of(int rank) const {
  const auto found = std::lower_bound(members_.begin(), members_.end(), rank);
  return found != members_.end() && *found == rank ? static_cast<int>(found - members_.begin()) : -1;
}

PipeMemory& SharedHost::pipe(int from, int to, int channel) const {
  const std::size_t members = members_.size();
  std::byte* const pipes = regions_ + (whole_ ? members * StagingLayout::kRankBytes : 0);
  const std::size_t index =
      (static_cast<std::size_t>(channel) * members + static_cast<std::size_t>(index_of(from))) * members +
      static_cast<std::size_t>(index_of(to));
  return *reinterpret_cast<PipeMemory*>(pipes + index * kPipeBytes);
}

bool SharedHost::all_have_posted(std::uint64_t number) {
  for (int rank = 0; rank < nranks_; ++rank) {
    if (rank == rank_) continue;
    if (known_[static_cast<std::size_t>(rank)] < number && !has_posted(rank, number)) return false;
    compare(rank, number);
  }
  return true;
}

void SharedHost::post(std::uint64_t number, const Signature& signature, const PublishedBuffers* buffers) {
  Slot& own = slot(rank_, number);
  own.signature = signature;
  static_assert(sizeof(PublishedBuffers) <= sizeof(own.data));
  if (buffers) std::memcpy(own.data, buffers, sizeof(PublishedBuffers));
  own.number.store(number, std::memory_order_release);  // a rank that sees the number sees signature and staged input
  posted_ = number;
}

void SharedHost::compare_posted() {
  for (int rank = 0; rank < nranks_ && posted_ != 0; ++rank) {
    if (rank != rank_ && compared_[static_cast<std::size_t>(rank)] < posted_ && has_posted(rank, posted_))
      compare(rank, posted_);
  }
}

PublishedBuffers SharedHost::published(int rank, std::uint64_t number) const {
  PublishedBuffers result;
  std::memcpy(&result, slot(rank, number).data, sizeof(result));
  return result;
}

std::uint64_t SharedHost::last_posted(int rank) const {
  std::uint64_t last = 0;
  for (std::uint64_t index = 0; index < StagingLayout::kSlots; ++index)
    last = std::max(last, slot(rank, index).number.load(std::memory_order_acquire));
  return last;
}

bool SharedHost::fail(ErrorCode code, const std::string& text) const {
  std::uint32_t none = 0;
  // relaxed: only the first rank writes; the release store below publishes the text.
  if (!failure().state.compare_exchange_strong(none, 1, std::memory_order_relaxed)) return false;
  failure().code = static_cast<std::int32_t>(code);
  failure().text[text.copy(failure().text, sizeof(failure().text) - 1)] = 0;
  failure().state.store(2, std::memory_order_release);
  return true;
}

Error SharedHost::why() const {
  // A rank that is killed while it writes never completes the text, so this wait is bounded.
  base::Backoff backoff;
  for (int look = 0; look < 10'000 && failure().state.load(std::memory_order_acquire) != 2; ++look) backoff.pause();
  if (failure().state.load(std::memory_order_acquire) != 2)
    return {ErrorCode::kRankLost, "a rank of this host failed, and ended before it wrote the reason", {}};
  return {static_cast<ErrorCode>(failure().code), failure().text, {}};
}

}  // namespace slip::comm
