// Links: how this rank reaches each of the others. Ranks that can share memory get pipes, the others lines of a
// network; both are made when they are first used.
#pragma once

#include <memory>
#include <vector>

#include "comm/link.hpp"
#include "comm/shared_host.hpp"
#include "transport/net.hpp"

namespace slip {

class Links {
 public:
  // All ranks make theirs together. `host`: null if no two ranks are to share memory. `lines`: how those that this rank
  // sends on are made; its rank and host are filled in.
  Links(Bootstrap& bootstrap, SharedHost* host, NetOptions lines, std::int64_t timeout_ns);

  LinkEnd& to(int rank) { return end(outlets_, rank, true); }
  LinkEnd& from(int rank) { return end(inlets_, rank, false); }
  // Those that were used and have messages under way move on. False: none did.
  bool drive();
  bool drive(LinkEnd& end, int rank);
  void attend(bool attended);  // see LinkEnd
  // Sleeps until a link under way may move, or for a moment. False: nothing would tell, and it did not.
  bool rest();
  bool through_memory(int rank) const;
  int failed() const { return failed_; }  // the rank of the link that threw; -1: none did

 private:
  using Ends = std::vector<std::unique_ptr<LinkEnd>>;
  LinkEnd& end(Ends& ends, int rank, bool out);
  std::unique_ptr<LinkEnd> make(int rank, bool out);
  std::unique_ptr<NetSender> connect(int rank);
  std::unique_ptr<NetReceiver> accept(int rank);

  Bootstrap& bootstrap_;
  SharedHost* const host_;
  NetOptions lines_;
  const std::int64_t timeout_ns_;
  std::unique_ptr<NetListener> listener_;
  std::vector<NetHandle> handles_;
  std::vector<std::unique_ptr<NetReceiver>> arrived_;  // by rank: connected, and not asked for yet
  Ends outlets_, inlets_;
  struct Made {
    LinkEnd* end = nullptr;
    int rank = 0;
  };
  std::vector<Made> made_;
  std::vector<pollfd> watched_;  // kept, so that nothing is allocated
  int failed_ = -1;
};

}  // namespace slip
