// A text that one rank has and all are to have, over the bootstrap: along a tree, so that nobody sends it often.
#pragma once

#include <string>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip {

// All ranks call it, with the same `owner`, whose text everybody gets.
std::string spread_text(Bootstrap& bootstrap, int owner, const std::string& text);

}  // namespace slip
