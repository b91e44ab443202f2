#include "backend/sim/links.hpp"

#include <algorithm>

namespace slip::sim {

std::uint32_t Links::add(std::uint64_t bytes_per_second) {
  links_.emplace_back().capacity = bytes_per_second;
  return static_cast<std::uint32_t>(links_.size() - 1);
}

void Links::set_slowdown(std::uint32_t ppm) {
  if (ppm == 0) return;  // both paces stay 1: 128-bit divisions of small numbers are faster
  full_pace_ = kPpm + ppm;
  slow_pace_ = kPpm;
}

void Links::start(Flow& flow, const Path& path, std::uint64_t bytes, Picos now) {
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

void Links::slow(Flow& flow, bool slowed) {
  if (flow.slowed == slowed) return;
  flow.slowed = slowed;
  paced_.push_back(&flow);
}

void Links::stop(Flow& flow) {
  std::erase(paced_, &flow);
  for (const std::uint32_t index : *flow.path) {
    std::vector<Flow*>& flows = links_[index].flows;
    *std::find(flows.begin(), flows.end(), &flow) = flows.back();
    flows.pop_back();
    if (!flows.empty()) touched_.push_back(index);
  }
  flow.path = nullptr;
}

std::span<Flow* const> Links::settle(Picos now) {
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
void Links::collect(std::uint32_t link) {
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
void Links::share() {
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

void Links::give(Flow& flow, std::uint64_t rate) {
  flow.fresh_rate = rate;
  for (const std::uint32_t index : *flow.path) {
    Link& link = links_[index];
    link.left -= std::min(link.left, rate);
    --link.open;
  }
}

void Links::update(Flow& flow, Picos now) {
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

}  // namespace slip::sim
