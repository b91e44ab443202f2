// The host's clock: monotonic, and the same in all its processes, unlike now_ns().
#pragma once

#include <cstdint>

namespace slip {

std::int64_t host_ns();

}  // namespace slip
