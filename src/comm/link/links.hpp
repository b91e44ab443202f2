// Links: the links of this rank to and from all other ranks, by rank and channel. Ranks that share memory get pipes
// (pipe.hpp), others network connections (net_link.hpp), which link_rails.hpp spreads over several interfaces. Each
// link is made when it is first used. Only one thread at a time may use this object.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "base/fail.hpp"
#include "comm/host/shared_host.hpp"
#include "comm/link/link.hpp"
#include "comm/link/link_rails.hpp"
#include "comm/plan/tuning.hpp"
#include "transport/net/net.hpp"
#include "transport/net/proxy.hpp"

namespace slip::comm {

class Links {
 public:
  // All ranks construct theirs together. `host`: null if no ranks share memory, otherwise with as many channels.
  // `net_options`: options of the connections on which this rank sends; rank, host, key and rails are filled in here.
  Links(transport::Bootstrap& bootstrap, SharedHost* host, transport::NetOptions net_options, std::int64_t timeout_ns,
        int channels = 1, const TopologyNics& topology = {});

  // From now on to() and from() return the links of a call with this number of channels: see LinkRails. Initially one.
  void set_call_channels(int channels) { rails_.set_call_channels(channels); }
  LinkEnd& to(int rank, int channel = 0) { return end(outlets_, rank, number(rank, channel), true); }
  LinkEnd& from(int rank, int channel = 0) { return end(inlets_, rank, number(rank, channel), false); }
  // Drives all links that have been used, or one of them. Returns false if nothing moved.
  bool drive();
  bool drive(LinkEnd& end, int rank);
  void set_driven(bool driven);  // see LinkEnd
  void close() noexcept;         // see LinkEnd
  // Until stop_notifying(), wakes the subscriber when a link with messages under way may move bytes. Returns false if
  // no message is under way, or if one of the links cannot wake a thread. Then no link wakes the subscriber.
  bool notify(base::Subscriber& subscriber);
  void stop_notifying();
  int channels() const { return channels_; }
  int rails() const { return std::max(rails_.count(), 1); }
  // Sleeps until a link with messages under way may move bytes, for a millisecond at most. Returns false, without
  // sleeping, if one of these links has no file descriptor.
  bool sleep();
  bool through_memory(int rank) const;
  int failed_rank() const { return failed_rank_; }  // the other rank of the link that threw last; -1: no link did

 private:
  using Ends = std::vector<std::unique_ptr<LinkEnd>>;
  // The number of a link to or from a rank. Pipes, and connections bound to one rail, have the number of their channel.
  // Those of striped connections follow.
  int number(int rank, int channel) const {
    return rails_.use() == RailUse::kStriped && !through_memory(rank) ? channels_ + channel : channel;
  }
  int numbers() const { return rails_.count() > 1 ? 2 * channels_ : channels_; }
  LinkEnd& end(Ends& ends, int rank, int number, bool out);
  void listen();
  std::unique_ptr<LinkEnd> make(int rank, int number, bool out);
  std::unique_ptr<transport::ProxyConnection> connect(int rank, int number);
  std::unique_ptr<transport::ProxyConnection> accept(int rank, int number);  // null: it has not arrived
  [[noreturn]] void fail_descriptors(const base::TooManyFiles& error) const;
  std::size_t index(int rank, int number) const {
    return static_cast<std::size_t>(number) * static_cast<std::size_t>(bootstrap_.nranks()) +
           static_cast<std::size_t>(rank);
  }

  transport::Bootstrap& bootstrap_;
  SharedHost* const host_;
  transport::NetOptions net_options_;
  const std::int64_t timeout_ns_;
  const int channels_;
  LinkRails rails_;
  const transport::Net* net_ = nullptr;  // the network of all ranks; null: none is needed
  std::unique_ptr<transport::NetListener> listener_;
  std::vector<transport::NetHandle> handles_;
  std::vector<std::unique_ptr<transport::NetReceiver>> arrived_;  // connections that no link has taken yet
  Ends outlets_, inlets_;                                         // arrived_, outlets_, inlets_: by number and rank
  struct Made {
    LinkEnd* end = nullptr;
    int rank = 0;
  };
  std::vector<Made> made_;
  std::vector<pollfd> watched_;  // kept, so that sleep() allocates nothing
  int failed_rank_ = -1;
};

// Measures the link rates for the tuning model. All ranks call it when they make a communicator. Rank 0 measures its
// link to the first rank that it reaches only over the network; all ranks get the result. If rank 0 reaches all ranks
// through memory, the result is the constants for pipes. Takes a few milliseconds, tens of milliseconds on slow
// networks.
LinkRates measure_links(transport::Bootstrap& bootstrap, Links& links, std::int64_t deadline_ns);

}  // namespace slip::comm
