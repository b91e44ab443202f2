#include "base/biased_lock.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

namespace slip {
namespace {

constexpr std::uint32_t kMaxPatience = 1u << 12;

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
  const std::uint64_t favour = favour_.load(std::memory_order_relaxed);
  if (favour != 0) {  // another thread's: this one would have come in with it
    favour_.store(0, std::memory_order_relaxed);
    heavy_fence();
    // acquire: what the favourite wrote under the lock.
    for (int spins = 0; taken_[favour % kSeats].load(std::memory_order_acquire); ++spins) spin(spins);
    streak_ = 0;
    patience_ = std::min(patience_ * 4, kMaxPatience);
  }
  seat_ = kNoSeat;
  streak_ = last_ == me ? streak_ + 1 : 0;
  last_ = me;
  if (streak_ < patience_ || !g_has_membarrier) return;
  streak_ = 0;
  const int seat = find_seat(me);
  if (seat != kNoSeat) favour_.store(me * kSeats + static_cast<std::uint64_t>(seat), std::memory_order_relaxed);
}

// A seat is never given to a second thread: its first one may be late by any time.
int BiasedLock::find_seat(std::uint64_t thread) {
  for (int seat = 0; seat < kSeats; ++seat) {
    if (owners_[seat] == 0) owners_[seat] = thread;
    if (owners_[seat] == thread) return seat;
  }
  return kNoSeat;
}

}  // namespace slip
