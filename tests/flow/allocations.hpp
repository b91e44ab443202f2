// Counts the calls of operator new on this thread.
#pragma once

#include <cstdint>

namespace slip::test {

std::uint64_t allocations();  // of this thread, since it began

}  // namespace slip::test
