// Slab: stream states that are never deleted but used again, process-wide, so that old references meet a valid object.
// Who gives a state back makes it as good as new before: the next device knows nothing of the last one.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/fork_mutex.hpp"
#include "base/thread.hpp"

namespace slip {

template <class State>
class Slab {
 public:
  static State* take() {
    Slab& slab = instance();
    const std::lock_guard lock(slab.mutex_);
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
    const std::lock_guard lock(slab.mutex_);
    slab.idle_.push_back(state);
  }

 private:
  static Slab& instance() {
    static Slab* const kSlab = [] {
      at_fork([] {}, [] {}, abandon_idle);
      return new Slab;  // never destroyed: events of static lifetime refer to states
    }();
    return *kSlab;
  }
  // In a child of fork. A thread of the parent may have been about to look at one of them, with a lock of it held.
  static void abandon_idle() { instance().idle_.clear(); }

  ForkMutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<State>> all_;
  std::vector<State*> idle_;
};

}  // namespace slip
