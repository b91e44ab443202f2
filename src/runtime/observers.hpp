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

}  // namespace slip
