// LinkRails: chooses the network interfaces (rails, see transport/net/rails.hpp) for the connections of this rank.
// Links owns it; only one thread at a time may use it.
//
// Each rank listens at all its rails. The sender chooses the rails of a connection:
//   bound      to one rail. Used if the number of a call's channels is a multiple of the number of rails. Each channel
//              then has one rail: that of the NIC that the topology gives to the channel, otherwise round-robin.
//   striped    over all rails, in equal parts. Used for all other calls, and for sends and receives. Small messages use
//              only the first rail of the connection; the first rail differs between pairs of ranks.
// Usually each host has only the interface that its ranks also use during setup. Then no connection is bound to an
// interface, and bound and striped connections are the same.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "transport/bootstrap/bootstrap.hpp"
#include "transport/net/rails.hpp"

namespace slip::comm {

// What the topology says about the NICs of this rank's host.
struct TopologyNics {
  std::vector<transport::Nic> nics;
  std::vector<int> by_channel;  // index into `nics`; empty: the topology gives no NIC to a channel
};

enum class RailUse { kBound, kStriped };

class LinkRails {
 public:
  // The rails of this rank. `control`: the address at which the other ranks reach it during setup.
  static std::vector<transport::Rail> own(const std::string& rule, const std::string& control,
                                          const TopologyNics& topology);

  LinkRails() = default;
  // All ranks construct theirs together. `own`: with the ports at which this rank listens.
  LinkRails(transport::Bootstrap& bootstrap, const std::vector<transport::Rail>& own, const TopologyNics& topology);

  // The maximum number of rails that a rank has, the same on all ranks. 0: no connection is bound to an interface.
  int count() const { return count_; }
  // A call with this number of channels begins.
  void set_call_channels(int channels) {
    use_ = count_ < 2 || channels % count_ == 0 ? RailUse::kBound : RailUse::kStriped;
  }
  RailUse use() const { return use_; }  // of the current call, the same on all ranks; kBound if there is one rail
  // The paths of the connection to a rank, in the order in which stripes use them. Empty: the connection is not bound
  // to interfaces.
  std::vector<transport::RailPath> paths(int rank, int channel, RailUse use) const;
  // Later connections do not use this path.
  void lose(const transport::RailPath& path) { lost_.insert(path.text()); }
  // One line for each channel, and one for striped connections.
  std::string text(int channels) const;

 private:
  // The position in `paths` of a bound connection.
  std::size_t path_of(const std::vector<transport::RailPath>& paths, int channel) const;

  int rank_ = 0;
  int count_ = 0;
  RailUse use_ = RailUse::kBound;
  std::vector<std::vector<transport::Rail>> rails_;  // by rank
  std::vector<std::string> interfaces_;              // by channel; empty: the topology does not say
  std::set<std::string> lost_;                       // texts of paths
};

}  // namespace slip::comm
