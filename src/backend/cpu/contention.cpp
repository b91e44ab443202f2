// The pool's threads where cores have other work: which core the host thread uses, and what preemption does to times.
#include <utility>

#include "backend/cpu/pool.hpp"
#include "base/clock.hpp"
#include "base/cores.hpp"

namespace slip {

void Pool::wake(Lane& lane) {
  host_core_.store(current_core(), std::memory_order_relaxed);
  share(lane);
}

// Whether this worker runs on the core of the host thread that fills lanes: where the other cores have work, the system
// puts them there together. Then that thread does not run while this one looks for what it submits.
bool Pool::shares_host_core() const { return current_core() == host_core_.load(std::memory_order_relaxed); }

// A thread that is woken where all cores have work comes to the core of its waker, and takes turns with it instead of
// running beside it.
void Pool::leave_host_core(Runner& self) {
  if (one_core_ || !shares_host_core() || ticks() - self.moved < move_ticks_) return;
  leave_core(host_core_.load(std::memory_order_relaxed));
  self.moved = ticks();
}

// A lane of short ops does not become one of long ops because the system took the core from this thread meanwhile.
void Pool::note_time(Runner& self, Lane& lane, std::uint64_t op_ticks) const {
  if (op_ticks > long_ticks_ && !expected_long(lane, nullptr)) {
    const std::int64_t before = std::exchange(self.preemptions, preemptions());
    if (before != self.preemptions) return;
  }
  lane.op_ticks.store(op_ticks, std::memory_order_relaxed);
}

}  // namespace slip
