// What the ranks are doing that a call waits for, for the error text of a missed deadline.
#pragma once

#include <span>
#include <string>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

// "rank 2 (it ended ...), rank 3 (...)", and the circle of waits if this rank is part of one. For ranks of this host it
// reads the ledgers of their processes, which may even be stopped. It asks other ranks, and gives them a second to
// answer.
std::string missing_ranks_text(const Bootstrap& bootstrap, std::span<const int> ranks);

}  // namespace slip
