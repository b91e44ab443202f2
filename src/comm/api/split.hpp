// Which ranks of a communicator make a new one together: those that say the same colour, in the order of their keys.
#pragma once

#include <optional>
#include <set>

#include "transport/bootstrap/recovery.hpp"

namespace slip {

struct SplitGroup {
  Membership membership;
  std::set<int> members;  // ranks of the parent
};

// All ranks of the bootstrap call it. None for a colour below 0.
std::optional<SplitGroup> split_group(Bootstrap& bootstrap, int color, int key, const SetupCall& call);

// Runs `make`, whose waits end when the parent loses a member of the group, or a member fails there. Throws what the
// failure detector of the parent says, if that is why `make` failed.
void make_in_parent(Bootstrap& parent, const SplitGroup& group, const Recovery::Make& make);

}  // namespace slip
