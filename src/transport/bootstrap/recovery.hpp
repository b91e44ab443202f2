// Recovery: after a loss, the remaining ranks of a bootstrap agree on the set of survivors and make a smaller
// communicator. The lowest surviving rank leads a round:
//   1. each rank sends the leader a join message with the losses that it knows of;
//   2. the leader sends all survivors the members and the id of a new root, and each tries to make the communicator;
//   3. each votes, and the leader sends the decision: done, again or failed.
// A rank that is lost meanwhile is left out in the next round. If it was the leader, the next lowest rank leads.
//
// A rank that the others believe to be lost is notified and ends with an error. So does a rank that was itself silent
// for too long and then finds that all others are gone. If the network splits the ranks into two groups, each group
// continues without the other.
//
// If the leader dies while it sends the decision "done", some ranks do not get it. These ranks check whether another
// rank got it: then that rank has left the old communicator by a clean shutdown. If so, they continue with the new
// communicator, too, and detect the leader's loss there. If no rank that got the decision leaves the old communicator,
// these ranks wait until the deadline and end with an error.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "transport/bootstrap/bootstrap.hpp"

namespace slip::transport {

// A rank of a new communicator, and the id of the root where its ranks find each other.
struct Membership {
  UniqueId id;
  int rank = 0, nranks = 1;  // in the new communicator
};

// Starts a root at the address at which the others reach this rank. The id may be sent unencrypted: instead of a secret
// it contains a salt, from which the ranks of this bootstrap derive the secret.
UniqueId make_root(const Bootstrap& bootstrap);
UniqueId with_secret(const Bootstrap& bootstrap, const UniqueId& id);  // `id`: from make_root() on any rank

// Makes the new communicator; throws if that fails. If a rank is lost meanwhile, `abort` is set and must end every
// wait.
using MakeCommunicator = std::function<void(const Membership& group, const std::shared_ptr<AbortFlag>& abort)>;

// Returns when `make` has succeeded on all remaining ranks. `excluded`: ranks that are left out although they may be
// alive. All callers must pass the same ranks.
void recover(Bootstrap& bootstrap, std::span<const int> excluded, const MakeCommunicator& make);

}  // namespace slip::transport
