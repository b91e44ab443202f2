// Weight streaming on the cpu device: a file in the page cache beside all weights resident, and a model three times as
// large as the memory it may use, from disk.
#pragma once

#include <string>

#include "support/harness.hpp"

namespace slip::bench {

void add_cpu_bars(Harness& harness);

// A process of its own, whose memory counts: runs the model within the budget and prints what it took.
int run_cold(const std::string& folder, std::uint64_t budget);

}  // namespace slip::bench
