#include "comm/plan/relays.hpp"

#include <map>

namespace slip {

Relays::Relays(const std::vector<int>& hosts) {
  std::map<int, std::size_t> known;
  std::vector<std::size_t> number;  // of a rank on its host
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    const auto [host, fresh] = known.try_emplace(hosts[rank], known.size());
    if (fresh) members_.emplace_back();
    host_.push_back(host->second);
    number.push_back(members_[host->second].size());
    members_[host->second].push_back(static_cast<int>(rank));
  }
  for (const std::vector<int>& own : members_) {
    for (const std::size_t rail : number) by_.push_back(own[rail % own.size()]);
  }
}

void Relays::set_arrival(int to, int relay) {
  if (arrival(to) == relay) return;
  if (arrival_.empty()) {
    for (std::size_t rank = 0; rank < host_.size(); ++rank) arrival_.push_back(static_cast<int>(rank));
  }
  arrival_[static_cast<std::size_t>(to)] = relay;
}

}  // namespace slip
