#include "base/biased_lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace slip::base {
namespace {

constexpr std::uint32_t kMaxThreshold = 1u << 12;

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

// False until static initialisation reaches this constant. That is safe, because light_fence() is a full fence until
// then.
const bool g_has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;

void heavy_fence() {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // The process is not registered yet: static initialisation has not reached g_has_membarrier. If registering fails,
  // too, the system has no membarrier, and light_fence() is a full fence.
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
    return;
  full_fence();
}

void BiasedLock::lock_slowly() {
  const std::uint64_t me = thread_index();
  lock_.lock();
  const std::uint64_t bias = bias_.load(std::memory_order_relaxed);
  if (bias != 0) {  // the lock is biased to another thread: revoke the bias
    bias_.store(0, std::memory_order_relaxed);
    heavy_fence();
    // acquire: sees what the bias owner wrote under the lock.
    for (Backoff backoff; taken_[bias % kSlots].load(std::memory_order_acquire); backoff.pause()) {}
    streak_ = 0;
    threshold_ = std::min(threshold_ * 4, kMaxThreshold);
  }
  slot_ = kNoSlot;
  streak_ = last_holder_ == me ? streak_ + 1 : 0;
  last_holder_ = me;
  if (streak_ < threshold_ || !g_has_membarrier) return;
  streak_ = 0;
  const int slot = find_slot(me);
  if (slot != kNoSlot) bias_.store(me * kSlots + static_cast<std::uint64_t>(slot), std::memory_order_relaxed);
}

// A slot is never given to a second thread: the first one may set its flag arbitrarily late.
int BiasedLock::find_slot(std::uint64_t thread) {
  for (int slot = 0; slot < kSlots; ++slot) {
    if (slot_owners_[slot] == 0) slot_owners_[slot] = thread;
    if (slot_owners_[slot] == thread) return slot;
  }
  return kNoSlot;
}

}  // namespace slip::base
