// Slab: the process-wide pool of stream states of one type (Lane, CudaStream, ...). States are reused but never
// deleted, so a stale reference to a stream still points to a valid object. A device resets a state before it gives it
// back.
#pragma once

#include <memory>
#include <vector>

#include "base/fork_mutex.hpp"
#include "base/thread.hpp"

namespace slip::backend {

template <class State>
class Slab {
 public:
  static State* take() {
    Slab& slab = instance();
    const base::LockGuard lock(slab.mutex_);
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
    const base::LockGuard lock(slab.mutex_);
    slab.idle_.push_back(state);
  }

 private:
  static Slab& instance() {
    static Slab* const kSlab = [] {
      base::at_fork([] {}, [] {}, abandon_idle);
      return new Slab;  // never destroyed: events of static lifetime refer to states
    }();
    return *kSlab;
  }
  // In the child of a fork(): another thread of the parent may have held a lock of an idle state. So the child does not
  // reuse these states.
  static void abandon_idle() SLIP_NO_THREAD_SAFETY_ANALYSIS { instance().idle_.clear(); }

  base::ForkMutex mutex_;
  std::vector<std::unique_ptr<State>> all_ SLIP_GUARDED_BY(mutex_);
  std::vector<State*> idle_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::backend
