#include "comm/host/copy_choice.hpp"

#include <algorithm>
#include <bit>

namespace slip::comm {
namespace {

// The first kAlternating calls of a size class alternate, so that both ways are measured. Later every kTryEvery-th call
// takes the slower way, because the times may have changed.
constexpr std::uint32_t kAlternating = 16, kTryEvery = 64;

std::size_t class_of(const Call& call) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(call.block_bytes())), 31);
}

}  // namespace

// The minimum of the first values, because the first calls take far too long. Then it follows the median: each value
// moves it by a small step, so a call that lost its core does not count more than others.
void CopyChoice::Typical::follow(double now) {
  constexpr double kStep = 0.04;
  if (values++ < kAlternating / 2) ticks = ticks == 0 ? now : std::min(ticks, now);
  else ticks *= now < ticks ? 1 - kStep : 1 + kStep;
}

CopyChoice::Times& CopyChoice::times_of(const Call& call) {
  return times_[static_cast<std::size_t>(call.kind)][class_of(call)];
}

bool CopyChoice::wants_read(const Call& call, const std::atomic<std::uint32_t>& staging_is_quicker) {
  if (mode_ != SingleCopy::kAuto) return mode_ == SingleCopy::kAlways;
  const std::uint32_t number = times_of(call).calls++;
  const bool tries = number % (number < kAlternating ? 2 : kTryEvery) == 0;
  const std::uint32_t hint = staging_is_quicker.load(std::memory_order_relaxed);  // relaxed: only a hint
  return ((hint >> class_of(call)) & 1) == (tries ? 1U : 0U);
}

void CopyChoice::note(const Call& call, bool read, std::uint64_t ticks,
                      std::atomic<std::uint32_t>& staging_is_quicker) {
  Times& times = times_of(call);
  (read ? times.read : times.staged).follow(static_cast<double>(ticks));
  if (times.read.values == 0 || times.staged.values == 0) return;
  const std::uint32_t bit = 1U << class_of(call), hint = staging_is_quicker.load(std::memory_order_relaxed);
  const std::uint32_t now = times.staged.ticks < times.read.ticks ? hint | bit : hint & ~bit;
  if (now != hint) staging_is_quicker.store(now, std::memory_order_relaxed);  // relaxed, both: only a hint
}

}  // namespace slip::comm
