#include "backend/sim/links.hpp"

#include <algorithm>
#include <map>

namespace slip::sim {

void FlowNetwork::start(Flow& flow, const Path& path, std::uint64_t bytes, Picos now) {
  flow.path = &path;
  flow.left = U128{bytes} * kSecond * full_pace_;
  flow.rate = 0;
  flow.speed = 0;
  flow.slowed = false;
  flow.mark = 0;  // the state may come from another World, whose marks have other numbers
  flow.since = now;
  for (const std::uint32_t link : path) {
    links_[link].flows.push_back(&flow);
    touched_.push_back(link);
  }
}

void FlowNetwork::stop(Flow& flow) {
  std::erase(paced_, &flow);
  for (const std::uint32_t index : *flow.path) {
    std::vector<Flow*>& flows = links_[index].flows;
    *std::ranges::find(flows, &flow) = flows.back();
    flows.pop_back();
    if (!flows.empty()) touched_.push_back(index);
  }
  flow.path = nullptr;
}

std::span<Flow* const> FlowNetwork::settle(Picos now) {
  changed_.clear();
  ++mark_;
  for (const std::uint32_t link : touched_) {
    if (links_[link].mark == mark_ || links_[link].flows.empty()) continue;
    part_.clear();
    part_flows_.clear();
    collect(link);
    share();
    for (Flow* flow : part_flows_) update(*flow, now);
  }
  touched_.clear();
  for (Flow* flow : paced_) {
    flow->fresh_rate = flow->rate;
    update(*flow, now);
  }
  paced_.clear();
  return changed_;
}

// Finds the connected component of `link`: its links and flows, breadth first.
void FlowNetwork::collect(std::uint32_t link) {
  links_[link].mark = mark_;
  part_.push_back(link);
  for (std::size_t i = 0; i < part_.size(); ++i) {
    Link& current = links_[part_[i]];
    current.left = current.capacity;
    current.open = static_cast<std::uint32_t>(current.flows.size());
    for (Flow* flow : current.flows) {
      if (flow->mark == mark_) continue;
      flow->mark = mark_;
      flow->fresh_rate = 0;
      part_flows_.push_back(flow);
      for (const std::uint32_t next : *flow->path) {
        if (links_[next].mark == mark_) continue;
        links_[next].mark = mark_;
        part_.push_back(next);
      }
    }
  }
}

// Progressive filling: the link with the smallest share per flow saturates first and determines the rate of its flows.
void FlowNetwork::share() {
  std::size_t unfixed = part_flows_.size();
  while (unfixed > 0) {
    Link* narrowest = nullptr;
    std::uint64_t smallest = 0;
    for (const std::uint32_t index : part_) {
      Link& link = links_[index];
      if (link.open == 0) continue;
      const std::uint64_t each = link.left / link.open;
      if (!narrowest || each < smallest) narrowest = &link, smallest = each;
    }
    for (Flow* flow : narrowest->flows) {
      if (flow->fresh_rate != 0) continue;
      give(*flow, std::max<std::uint64_t>(smallest, 1));  // never 0, so that every copy ends
      --unfixed;
    }
  }
}

void FlowNetwork::give(Flow& flow, std::uint64_t rate) {
  flow.fresh_rate = rate;
  for (const std::uint32_t index : *flow.path) {
    Link& link = links_[index];
    link.left -= std::min(link.left, rate);
    --link.open;
  }
}

void FlowNetwork::update(Flow& flow, Picos now) {
  flow.rate = flow.fresh_rate;
  const U128 speed = U128{flow.rate} * (flow.slowed ? slow_pace_ : full_pace_);
  if (speed == flow.speed) return;
  const U128 moved = flow.speed * static_cast<std::uint64_t>(now - flow.since);
  flow.left -= std::min(flow.left, moved);
  flow.since = now;
  flow.speed = speed;
  flow.end = after(now, divide_up(flow.left, speed));
  changed_.push_back(&flow);
}

// --- Topology ---

Topology::Topology(const Description& description, int devices, FlowNetwork& links)
    : peers_(description.peers), devices_(devices), known_(static_cast<std::size_t>(devices)) {
  add_hosts(description.copies, links);
  if (peers_.form == PeerDescription::Form::kLinks) add_listed(links);
  else add_peers(links);
}

void Topology::add_hosts(const CopyDescription& copies, FlowNetwork& links) {
  for (int device = 0; device < devices_; ++device) {
    const std::uint32_t out = links.add(copies.out);
    const std::uint32_t in = links.add(copies.in);
    Route routes[4] = {
        {{out}, copies.latency}, {{out}, copies.latency}, {{in}, copies.latency}, {{in}, copies.latency}};
    if (copies.both != 0) {  // a link that both directions cross limits their sum
      const std::uint32_t both = links.add(copies.both);
      for (Route& route : routes) route.path.push_back(both);
    }
    if (copies.pageable != 0) {
      const std::uint32_t pageable = links.add(copies.pageable);
      routes[1].path.push_back(pageable);
      routes[3].path.push_back(pageable);
    }
    hosts_.insert(hosts_.end(), std::begin(routes), std::end(routes));
  }
}

// Link numbers. Switch: 2i leads out of device i, 2i+1 into it. Ring: 2i leads from device i to i+1, 2i+1 back. Shared
// ring: i serves both directions.
void Topology::add_peers(FlowNetwork& links) {
  if (peers_.form == PeerDescription::Form::kNone) return;
  const bool shared = peers_.form == PeerDescription::Form::kRing && peers_.shared;
  for (int i = 0; i < devices_ * (shared ? 1 : 2); ++i) {
    const std::uint32_t link = links.add(peers_.bandwidth);
    if (i == 0) first_peer_link_ = link;
  }
}

void Topology::add_listed(FlowNetwork& links) {
  std::map<std::string, std::uint32_t> numbers;
  for (const auto& [name, bandwidth] : peers_.links) numbers[name] = links.add(bandwidth);
  for (const PeerDescription::Route& listed : peers_.routes) {
    if (listed.from >= devices_ || listed.to >= devices_)
      continue;  // the description lists more devices than were opened
    Route route{.path = {}, .latency = listed.latency};
    for (const std::string& name : listed.links) route.path.push_back(numbers.at(name));
    const bool in = listed.from == PeerDescription::kHost;
    if (!in && listed.to != PeerDescription::kHost) {
      routes_[pair(listed.from, listed.to)] = std::move(route);
      continue;
    }
    for (const bool pageable : {false, true}) {  // these links are in addition to the device's own link to the host
      Route& host = hosts_[index(in ? listed.to : listed.from, in, pageable)];
      host.path.insert(host.path.end(), route.path.begin(), route.path.end());
      host.latency += listed.latency;
    }
  }
}

const Route* Topology::find_peer(int from, int to) {
  auto found = routes_.find(pair(from, to));
  if (found == routes_.end()) {
    if (peers_.form == PeerDescription::Form::kNone || peers_.form == PeerDescription::Form::kLinks) return nullptr;
    found = routes_.emplace(pair(from, to), between(from, to)).first;
  }
  auto& known = known_[static_cast<std::size_t>(from)];
  known.resize(static_cast<std::size_t>(devices_));
  return known[static_cast<std::size_t>(to)] = &found->second;
}

Route Topology::between(int from, int to) const {
  if (peers_.form == PeerDescription::Form::kRing) return around(from, to);
  const auto out = static_cast<std::uint32_t>(2 * from);
  const auto in = static_cast<std::uint32_t>(2 * to + 1);
  return {{first_peer_link_ + out, first_peer_link_ + in}, peers_.latency};
}

Route Topology::around(int from, int to) const {
  const int ahead = (to - from + devices_) % devices_;
  const bool forward = ahead <= devices_ - ahead;  // the shorter direction; forward if both are equal
  Route route;
  for (int at = from; at != to;) {
    const int next = (at + (forward ? 1 : devices_ - 1)) % devices_;
    const int link = forward ? at : next;
    const int number = peers_.shared ? link : 2 * link + (forward ? 0 : 1);
    route.path.push_back(first_peer_link_ + static_cast<std::uint32_t>(number));
    route.latency = route.latency + peers_.latency;
    at = next;
  }
  return route;
}

}  // namespace slip::sim
