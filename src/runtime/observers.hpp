// Telling observers. `observed()` is the one load that a run without observers pays.
#pragma once

#include <atomic>

#include "slip/observer.hpp"

namespace slip {

namespace detail {
extern std::atomic<int> observer_count;
}

// relaxed: an observer attached just now may miss ops under way; no data hangs on it.
inline bool observed() { return detail::observer_count.load(std::memory_order_relaxed) != 0; }

void tell(const Record& record);

void start_observers();  // those that the environment asks for, once; defined in watch/table.cpp
void forget_tellers();   // in a child of fork: the threads that were telling do not exist here

}  // namespace slip
