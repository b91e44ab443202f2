// Which ranks of a communicator make a new one together: those that say the same colour, in the order of their keys.
#pragma once

#include <optional>

#include "transport/recovery.hpp"

namespace slip {

// All ranks of the bootstrap call it. None for a colour below 0.
std::optional<Membership> split_group(Bootstrap& bootstrap, int color, int key);

}  // namespace slip
