// The number of ops that the simulator executes in a second, without running functions.
#pragma once

#include <optional>

#include "support/harness.hpp"

namespace slip::bench {

std::optional<double> simulated_chain_rate(Context& context);  // one stream
std::optional<double> simulated_ring_rate(Context& context);   // 64 devices in a ring with shared links

}  // namespace slip::bench
