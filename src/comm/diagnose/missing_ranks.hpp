// Where the ranks are that a call waits for, for the error of a deadline.
#pragma once

#include <span>
#include <string>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

// "rank 2 (it ended ...), rank 3 (...)", and the circle of waits, if this rank is in one. Ranks of this host are read
// from the ledgers of their processes, which may be stopped; others are asked and have a second to answer.
std::string missing_ranks_text(const Bootstrap& bootstrap, std::span<const int> ranks);

}  // namespace slip
