// The figures of the tuning model, measured when a communicator is made whose ranks need the network.
#pragma once

#include "comm/link/links.hpp"
#include "comm/plan/tuning.hpp"

namespace slip {

// All ranks call it; rank 0 measures, with the first rank that it reaches over the network only, and tells the others.
// Without a network: what pipes of one host are like. Takes a few milliseconds, on slow networks some tens.
LinkRates measure_links(Bootstrap& bootstrap, Links& links, std::int64_t deadline_ns);

}  // namespace slip
