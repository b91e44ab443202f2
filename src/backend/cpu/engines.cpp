// The pool's engines: slots that an op needs to run.
#include "backend/cpu/pool.hpp"

namespace slip {
namespace {

// Only kernels obey priority; the copy engines are blind to it (rule 48). Priorities are 0, -1, -2.
std::size_t level(Engine engine, const Lane& lane) {
  return engine == Engine::kCompute ? static_cast<std::size_t>(lane.priority + 2) : 2;
}

}  // namespace

// Gives `self` the engine for the lane's next op, or parks the lane until its turn comes and returns false.
bool Pool::hold(Runner& self, Lane& lane, Engine engine) {
  if (lane.granted == engine) {  // its turn came while it was parked
    let_go(self);
    self.held = engine;
    lane.granted = Engine::kNone;
    return true;
  }
  if (self.held == engine) return true;
  let_go(self);
  EngineSlots& slots = engines_[static_cast<std::size_t>(engine)];
  const std::lock_guard lock(slots.lock);
  if (slots.free > 0) {
    --slots.free;
    self.held = engine;
    return true;
  }
  lane.parked_on.store(nullptr, std::memory_order_relaxed);
  lane.state.store(LaneState::kParked, std::memory_order_release);
  slots.waiting[level(engine, lane)].push(lane);
  slots.waiting_count.fetch_add(1, std::memory_order_relaxed);
  return false;
}

// Passes the held engine to the lane that waits for it first, or frees it.
void Pool::let_go(Runner& self) {
  if (self.held == Engine::kNone) return;
  const Engine engine = self.held;
  self.held = Engine::kNone;
  EngineSlots& slots = engines_[static_cast<std::size_t>(engine)];
  Lane* lane = nullptr;
  {
    const std::lock_guard lock(slots.lock);
    for (auto& waiting : slots.waiting) {
      if ((lane = waiting.pop())) break;
    }
    if (!lane) {
      ++slots.free;
      return;
    }
    slots.waiting_count.fetch_sub(1, std::memory_order_relaxed);
    lane->granted = engine;
  }
  make_ready(self, *lane);
}

bool Pool::wanted(Engine engine) const {
  return engines_[static_cast<std::size_t>(engine)].waiting_count.load(std::memory_order_relaxed) > 0;
}

}  // namespace slip
