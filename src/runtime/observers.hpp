// Telling observers. `observed()` is the one load that a run without observers pays.
#pragma once

#include <atomic>

#include "slip/observer.hpp"

namespace slip {

namespace detail {
extern std::atomic<int> observer_count;
extern Observer* const nobody;  // takes every record and keeps none
}  // namespace detail

// relaxed: an observer attached just now may miss ops under way; no data hangs on it.
inline bool observed() { return detail::observer_count.load(std::memory_order_relaxed) != 0; }

// The audience of a stream or a buffer: null, all attached observers; otherwise this observer alone.
inline bool observed_by(const Observer* audience) { return observed() && audience != detail::nobody; }

void tell(const Record& record);
void tell(const Record& record, Observer* audience);

// What the library does for itself, such as measuring costs or simulating a plan, is no part of the program's trace.
// While one lives, the devices, streams and buffers that this thread makes have another audience than the attached
// observers: `only` alone, or no observer. They must be gone before `only` is. On cuda devices `only` gets no runs.
class PrivateScope {
 public:
  explicit PrivateScope(Observer* only = nullptr);
  ~PrivateScope();
  PrivateScope(const PrivateScope&) = delete;
  PrivateScope& operator=(const PrivateScope&) = delete;

 private:
  Observer* const before_;
  const bool counted_;
};
Observer* current_audience();  // of what this thread makes now

void start_observers();  // those that the environment asks for, once; defined in watch/env_observers.cpp
void forget_tellers();   // in a child of fork: the threads that were telling do not exist here

}  // namespace slip
