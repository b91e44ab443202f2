#include "base/biased_lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace slip {
namespace {

constexpr std::uint32_t kMostPatience = 1u << 20;

long membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0); }

}  // namespace

// False while static objects are made, which is safe: light_fence() is then a full one.
const bool g_has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;

void heavy_fence() {
  if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return;
  // Not registered: before g_has_membarrier was made. Else the system has none, and light_fence() is a full fence, too.
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0)
    return;
  full_fence();
}

void BiasedLock::lock_slowly() {
  const std::uint64_t me = thread_index();
  lock_.lock();
  if (favourite_.load(std::memory_order_relaxed) != 0) {  // another thread: this one would have come in as it
    favourite_.store(0, std::memory_order_relaxed);
    heavy_fence();
    // acquire: what the favourite wrote under the lock.
    for (int spins = 0; entered_.load(std::memory_order_acquire); ++spins) spin(spins);
    streak_ = 0;
    patience_ = std::min(patience_ * 4, kMostPatience);
  }
  favoured_ = false;
  streak_ = last_ == me ? streak_ + 1 : 0;
  last_ = me;
  if (streak_ < patience_ || !g_has_membarrier) return;
  favourite_.store(me, std::memory_order_relaxed);
  streak_ = 0;
}

}  // namespace slip
