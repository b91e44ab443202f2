#include "comm/copy.hpp"

#include <cstring>

namespace slip {

void copy(void* to, const void* from, std::size_t bytes) {
  if (to != from && bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace slip
