// Links: how this rank reaches each of the others. Ranks that can share memory get pipes, the others lines of a
// network; both are made when they are first used.
#pragma once

#include <memory>
#include <vector>

#include "comm/host/shared_host.hpp"
#include "comm/link/link.hpp"
#include "comm/plan/tuning.hpp"
#include "transport/net/net.hpp"

namespace slip {

class Links {
 public:
  // All ranks make theirs together. `host`: null if no two ranks are to share memory, else with as many channels.
  // `lines`: how those that this rank sends on are made; its rank and host are filled in.
  Links(Bootstrap& bootstrap, SharedHost* host, NetOptions lines, std::int64_t timeout_ns, int channels = 1);

  LinkEnd& to(int rank, int channel = 0) { return end(outlets_, rank, channel, true); }
  LinkEnd& from(int rank, int channel = 0) { return end(inlets_, rank, channel, false); }
  // Those that were used and have messages under way move on. False: none did.
  bool drive();
  bool drive(LinkEnd& end, int rank);
  void attend(bool attended);  // see LinkEnd
  void close() noexcept;       // see LinkEnd
  // Whether `sleeper` is told of all that is under way, and there is something. Until it is told of nothing any more.
  bool tell(Sleeper& sleeper);
  void tell_nobody();
  int channels() const { return channels_; }
  // Sleeps until a link under way may move, or for a moment. False: nothing would tell, and it did not.
  bool rest();
  bool through_memory(int rank) const;
  int failed() const { return failed_; }  // the rank of the link that threw; -1: none did

 private:
  using Ends = std::vector<std::unique_ptr<LinkEnd>>;
  LinkEnd& end(Ends& ends, int rank, int channel, bool out);
  std::unique_ptr<LinkEnd> make(int rank, int channel, bool out);
  std::unique_ptr<NetSender> connect(int rank, int channel);
  std::unique_ptr<NetReceiver> accept(int rank, int channel);
  std::size_t index(int rank, int channel) const {
    return static_cast<std::size_t>(channel) * static_cast<std::size_t>(bootstrap_.nranks()) +
           static_cast<std::size_t>(rank);
  }

  Bootstrap& bootstrap_;
  SharedHost* const host_;
  NetOptions lines_;
  const std::int64_t timeout_ns_;
  const int channels_;
  std::unique_ptr<NetListener> listener_;
  std::vector<NetHandle> handles_;
  std::vector<std::unique_ptr<NetReceiver>> arrived_;  // connected, and not asked for yet
  Ends outlets_, inlets_;                              // these three by channel and rank
  struct Made {
    LinkEnd* end = nullptr;
    int rank = 0;
  };
  std::vector<Made> made_;
  std::vector<pollfd> watched_;  // kept, so that nothing is allocated
  int failed_ = -1;
};

// Measures the figures of the tuning model. All ranks call it when they make a communicator. Rank 0 measures with the
// first rank that it reaches only over the network, and tells the others. Without a network the result is the constants
// for pipes of one host. Takes a few milliseconds, on slow networks some tens.
LinkRates measure_links(Bootstrap& bootstrap, Links& links, std::int64_t deadline_ns);

}  // namespace slip
