// The options of a communicator: what is possible, and what all ranks must have the same.
#pragma once

#include "slip/communicator.hpp"
#include "transport/bootstrap.hpp"

namespace slip {

// Throws what cannot be. A wrong rank is left to the root, which tells all ranks.
void check_options(const CommunicatorOptions& options, int nranks, Here here);

BootstrapOptions bootstrap_options(const CommunicatorOptions& options, std::shared_ptr<AbortFlag> abort);

// All ranks call it. Throws on all of them if some would call another lost sooner than it gives signs of life.
void require_same_heartbeat(Bootstrap& bootstrap, const CommunicatorOptions& options, Here here);

}  // namespace slip
