// AbortFlag: one call from any thread ends every wait that looks at it, at once and for good. A descriptor stands
// beside the flag, because a wait for a socket can only be ended by something that it can wait for as well.
#pragma once

#include <atomic>

#include "transport/socket/wake_up.hpp"

namespace slip {

class AbortFlag {
 public:
  void set() noexcept {
    set_.store(true, std::memory_order_release);  // release: pairs with is_set()
    wake_up_.signal();
  }
  // acquire: who sees the flag sees what was written before it was set.
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  int descriptor() const noexcept { return wake_up_.descriptor(); }  // readable once it is set, and it stays so

 private:
  std::atomic<bool> set_{false};
  WakeUp wake_up_;
};

}  // namespace slip
