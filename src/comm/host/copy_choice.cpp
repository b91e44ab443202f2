#include "comm/host/copy_choice.hpp"

#include <algorithm>
#include <bit>

namespace slip::comm {
namespace {

// From this size of a block on, the kernel copies at first. On two Xeons of 2.1 and 2.5 GHz, both ways take about the
// same time at 32 to 64 KiB.
constexpr std::uint64_t kReadBytes = 64 << 10;

std::size_t class_of(const Call& call) {
  return std::min<std::size_t>(static_cast<std::size_t>(std::bit_width(call.block_bytes())), 31);
}

// Whether calls of this class usually let the kernel copy.
bool reads(const Call& call, std::uint32_t other_way) {
  return (call.block_bytes() >= kReadBytes) != (((other_way >> class_of(call)) & 1) != 0);
}

}  // namespace

CopyChoice::Times& CopyChoice::times_of(const Call& call) {
  return times_[static_cast<std::size_t>(call.kind)][class_of(call)];
}

bool CopyChoice::wants_read(const Call& call, const std::atomic<std::uint32_t>& other_way) {
  if (mode_ != SingleCopy::kAuto) return mode_ == SingleCopy::kAlways;
  const bool usual = reads(call, other_way.load(std::memory_order_relaxed));  // relaxed: only a hint
  return usual != Trials::tries(times_of(call).calls++);
}

void CopyChoice::note(const Call& call, bool read, std::uint64_t ticks, std::atomic<std::uint32_t>& other_way) {
  const std::uint32_t hint = other_way.load(std::memory_order_relaxed);
  const double each = static_cast<double>(ticks) / static_cast<double>(call.block_bytes());
  if (times_of(call).trials.note(read != reads(call, hint), each))
    other_way.store(hint ^ 1U << class_of(call), std::memory_order_relaxed);  // relaxed, both: only a hint
}

}  // namespace slip::comm
