// The secret of ranks whose id names only a place, because no launcher carried one to them: all processes of one user
// find the same.
//   SLIP_SECRET=WORDS         at least 16 characters; other users of a host cannot read a process's environment
//   SLIP_SECRET_FILE=FILE     at least 16 bytes, of this user and readable for no other
//   neither                   ~/.config/slipstream/secret ($XDG_CONFIG_HOME), made with random bytes if it is not
//   there:
//                             the same on all hosts that share the home directory
#pragma once

#include <string_view>

#include "transport/bootstrap/secret.hpp"

namespace slip {

// `job`: words that keep jobs apart, and need not be secret. `one_host`: the ranks meet at a Unix socket, where the
// kernel says whose process the other one is; no file is made then. Throws if there is none, or if others can read it.
Secret shared_secret(std::string_view job, bool one_host);

}  // namespace slip
