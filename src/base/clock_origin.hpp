// The zero of now_ns() on clocks that other processes have too: of the host since it booted, and of the world.
#pragma once

#include <cstdint>
#include <string>

namespace slip {

struct ClockOrigin {
  std::int64_t since_boot_ns = 0;  // CLOCK_MONOTONIC: exact between processes of one boot
  std::int64_t since_1970_ns = 0;  // CLOCK_REALTIME: between hosts as exact as their clocks are kept
};
ClockOrigin clock_origin();

std::string boot_id();  // names this host and its boot; "" where the system has none

}  // namespace slip
