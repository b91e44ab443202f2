// Copies between ranks' memory.
#pragma once

#include <cstddef>

namespace slip {

// `to` is `from`, or disjoint from it.
void copy(void* to, const void* from, std::size_t bytes);

}  // namespace slip
