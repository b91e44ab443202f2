// Relays: through which rank of its own host a rank reaches those of others, and through which of the receiver's it
// arrives there. The same on all ranks.
#pragma once

#include <set>
#include <span>
#include <utility>
#include <vector>

namespace slip {

class Relays {
 public:
  Relays() = default;  // nobody relays
  // Along the rails: rank j of a host is reached through rank j of the sender's, counted round. `hosts`: by rank, any
  // numbers.
  explicit Relays(const std::vector<int>& hosts);

  // The rank that passes on what `from` has for `to`, or `from`.
  int via(int from, int to) const {
    if (host_.empty() || host_of(from) == host_of(to) || alone_.contains({from, to})) return from;
    return by_[index(host_of(from), to)];
  }
  // The rank of its host that takes what others have for it, and hands it on; mostly itself.
  int arrival(int to) const { return arrival_.empty() ? to : arrival_[static_cast<std::size_t>(to)]; }
  bool hands_on() const { return !arrival_.empty(); }  // somebody is not reached directly
  // The ranks of its host, which alone may relay for it.
  std::span<const int> beside(int rank) const { return members_[host_of(rank)]; }
  bool same_host(int a, int b) const { return host_of(a) == host_of(b); }
  bool none() const { return host_.empty(); }

  // From the host of `rank` to `to`: through this one.
  void set(int rank, int to, int relay) { by_[index(host_of(rank), to)] = relay; }
  void set_alone(int from, int to) { alone_.insert({from, to}); }  // which does not hand over
  void set_arrival(int to, int relay);

 private:
  std::size_t host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  std::size_t index(std::size_t host, int to) const { return host * host_.size() + static_cast<std::size_t>(to); }

  std::vector<std::size_t> host_;          // by rank, counted from 0
  std::vector<std::vector<int>> members_;  // by host, in order
  std::vector<int> by_;                    // by host and receiver
  std::set<std::pair<int, int>> alone_;
  std::vector<int> arrival_;  // by receiver; empty: each itself
};

}  // namespace slip
