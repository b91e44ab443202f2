// Counts the calls of operator new on this thread.
#pragma once

#include <cstdint>

namespace slip::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kCountsAllocations = false;  // the sanitizer has operators of its own
#else
inline constexpr bool kCountsAllocations = true;
#endif
std::uint64_t allocations();  // of this thread, since it began

}  // namespace slip::test
