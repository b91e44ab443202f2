// Starts ranks as processes on several hosts, which are network namespaces or names on this machine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "support/hosts.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test {

// `each` ranks on each host, in the order of the hosts.
class Job {
 public:
  // `AnyHosts`: Hosts or RailHosts.
  template <class AnyHosts>
  Job(const AnyHosts& hosts, int count, int each, const std::string& part,
      const std::map<std::string, std::string>& variables = {}) {
    hosts.within(0, [&] { id_ = test::local_id(hosts.address(0)); });
    for (int rank = 0; rank < count * each; ++rank) {
      hosts.within(rank / each,
                   [&] { ranks_.push_back(std::make_unique<RankProcess>(part, id_, count * each, rank, variables)); });
    }
  }
  RankProcess& operator[](int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

 private:
  UniqueId id_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
};

}  // namespace slip::test
