// AbortFlag: set once by any thread, never reset; it ends every wait that checks it. The flag has a descriptor, because
// only a descriptor can end a poll for a socket.
#pragma once

#include <atomic>

#include "base/descriptor.hpp"
#include "base/sync.hpp"

namespace slip::transport {

using base::OwnedDescriptor;

class AbortFlag {
 public:
  void set() noexcept {
    set_.store(true, std::memory_order_release);  // release: pairs with the acquire in is_set()
    wake_up_.signal();                            // after the store: a thread that it wakes finds the flag set
  }
  // acquire: a thread that sees the flag sees what was written before it was set.
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  // Becomes readable when the flag is set, and stays readable.
  int descriptor() const noexcept { return wake_up_.descriptor(); }

 private:
  std::atomic<bool> set_{false};
  base::WakeUp wake_up_;
};

}  // namespace slip::transport
