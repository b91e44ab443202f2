// Slab: stream states that are never deleted but used again, process-wide, so that old references meet a valid object.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

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
    static Slab* const kSlab = new Slab;  // never destroyed: events of static lifetime refer to states
    return *kSlab;
  }
  std::mutex mutex_;
  std::vector<std::unique_ptr<State>> all_;
  std::vector<State*> idle_;
};

}  // namespace slip
