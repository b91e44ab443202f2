// Formations: who is whose neighbour in the rings and trees of a communicator, and who passes on to other hosts. Pure
// functions of where the ranks are, so that all ranks come to the same.
#pragma once

#include <cstdint>
#include <string>

#include "comm/plan/algorithm.hpp"

namespace slip {

// Where nothing but the hosts is known: a ring for each channel, host by host. In each the ranks of a host are counted
// from another one on, so that all of them lead to other hosts in turn; on one host every second goes the other way
// round. `hosts`: by rank, any numbers.
std::vector<Formation> formations_of(const std::vector<int>& hosts, int channels);

// As the search found them; where it found fewer channels they are used again.
std::vector<Formation> formations_of(const Cluster& cluster, const ChannelPlan& plan, int channels);

// A channel's ring, and its trees, which are of ranks there and of positions here.
Formation formation_of(const Channel& channel);
// The same with the switch of its tree as one more rank, the root.
Formation switch_formation_of(const Channel& channel);

// As the topology's routes along the rails say.
Relays relays_of(const Cluster& cluster);

// A number that differs if anything in them does.
std::uint64_t digest(const std::vector<Formation>& formations);

// Rings and trees, a line each.
std::string rings_text(const std::vector<Formation>& formations);

}  // namespace slip
