// Slab: the process-wide pool of objects of one type: the states of streams (Lane, CudaStream, ...) and of buffers.
// They are reused but never deleted, so a stale reference to a stream or a buffer still points to a valid object. The
// owner resets an object before it gives it back.
#pragma once

#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::base {

template <class State>
class Slab {
 public:
  static State* take() {
    Slab& slab = instance();
    const LockGuard lock(slab.mutex_);
    if (slab.idle_.empty()) {
      slab.all_.push_back(std::make_unique<State>());
      return slab.all_.back().get();
    }
    State* state = slab.idle_.back();
    slab.idle_.pop_back();
    return state;
  }

  static void give(State* state) {
    Slab& slab = instance();
    const LockGuard lock(slab.mutex_);
    slab.idle_.push_back(state);
  }

 private:
  static Slab& instance() { return process_wide<Slab, abandon_idle>(); }
  // In the child of a fork(): another thread of the parent may have held a lock of an idle state. So the child does not
  // reuse these states.
  static void abandon_idle() SLIP_NO_THREAD_SAFETY_ANALYSIS { instance().idle_.clear(); }

  ForkMutex mutex_;
  std::vector<std::unique_ptr<State>> all_ SLIP_GUARDED_BY(mutex_);
  std::vector<State*> idle_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::base
