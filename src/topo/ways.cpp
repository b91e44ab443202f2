#include "topo/ways.hpp"

#include <algorithm>

namespace slip::topo {
namespace {

Way way(const Members& members, int from, int to) {
  TopoPath path = members.paths->between(from, to);
  return {path.type, to_rate(path.gbps), std::move(path.links)};
}

bool nearer(const Way& a, const Way& b) { return a.type != b.type ? a.type < b.type : a.rate > b.rate; }

// The nearest type of path that uses the link.
PathType used_from(const TopoSystem& system, const TopoLink& link) {
  const auto is_cpu = [&](int node) { return system.nodes[static_cast<std::size_t>(node)].kind == TopoKind::kCpu; };
  switch (link.kind) {
    case LinkKind::kNvLink: return PathType::kNvl;
    case LinkKind::kSys: return PathType::kSys;
    case LinkKind::kNet: return PathType::kLoc;
    case LinkKind::kPci:
    case LinkKind::kMemory: break;
  }
  return is_cpu(link.from) || is_cpu(link.to) ? PathType::kPhb : PathType::kPix;
}

// The node itself and what hangs on it.
std::vector<char> below(const TopoSystem& system, int top) {
  std::vector<char> inside(system.nodes.size(), 0);
  for (std::size_t node = 0; node < inside.size(); ++node) {
    int up = static_cast<int>(node);
    while (up >= 0 && up != top) up = system.nodes[static_cast<std::size_t>(up)].parent;
    inside[node] = up == top ? 1 : 0;
  }
  return inside;
}

}  // namespace

Ways::Ways(const Members& members)
    : count_(members.nodes.size()), ports_(members.through_net ? members.system->nets.size() : 0) {
  for (const TopoLink& link : members.system->links) capacity_.push_back(to_rate(link.gbps));
  for (const int a : members.nodes) {
    for (const int b : members.nodes) between_.push_back(way(members, a, b));
  }
  for (std::size_t port = 0; port < ports_; ++port) {
    const int net = members.system->nets[port];
    for (const int node : members.nodes) {
      in_.push_back(way(members, net, node));
      out_.push_back(way(members, node, net));
    }
  }
  prefer();
  find_cuts(members);
}

void Ways::prefer() {
  for (std::size_t a = 0; a < count_; ++a) {
    std::vector<int>& order = after_.emplace_back();
    for (std::size_t i = 1; i < count_; ++i) order.push_back(static_cast<int>((a + i) % count_));
    const Way* row = &between_[a * count_];
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return nearer(row[x], row[y]); });
  }
  for (std::size_t port = 0; port < ports_; ++port) {
    std::vector<int>& order = beside_.emplace_back();
    for (std::size_t i = 0; i < count_; ++i) order.push_back(static_cast<int>(i));
    const Way* row = &in_[port * count_];
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return nearer(row[x], row[y]); });
  }
}

// Every device, switch and CPU with what hangs on it is a part that rings must leave, if there are members or, for
// rings that go on to other machines, ports outside of it.
void Ways::find_cuts(const Members& members) {
  const TopoSystem& system = *members.system;
  std::vector<std::vector<int>> links_of(system.nodes.size());
  for (std::size_t link = 0; link < system.links.size(); ++link)
    links_of[static_cast<std::size_t>(system.links[link].from)].push_back(static_cast<int>(link));
  for (std::size_t top = 0; top < system.nodes.size(); ++top) {
    const std::vector<char> inside = below(system, static_cast<int>(top));
    const auto is_inside = [&](int node) { return inside[static_cast<std::size_t>(node)] != 0; };
    const auto within = static_cast<std::size_t>(std::count_if(members.nodes.begin(), members.nodes.end(), is_inside));
    const bool no_port = std::none_of(system.nets.begin(), system.nets.end(), is_inside);
    if (within > 0 && (within < count_ || (ports_ > 0 && no_port))) add_cut(system, links_of, inside);
  }
  if (ports_ > 0) {
    std::vector<char> inside(system.nodes.size(), 1);  // all but the ports
    for (const int net : system.nets) inside[static_cast<std::size_t>(net)] = 0;
    add_cut(system, links_of, inside);
  }
  // Parts that are alike have one bound.
  std::sort(cuts_.begin(), cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
}

// Links that are alike are counted: what leads out of a CPU is a link to every other one.
void Ways::add_cut(const TopoSystem& system, const std::vector<std::vector<int>>& links_of,
                   const std::vector<char>& inside) {
  Cut all;
  for (std::size_t node = 0; node < inside.size(); ++node) {
    if (!inside[node]) continue;
    for (const int link : links_of[node]) {
      const TopoLink& each = system.links[static_cast<std::size_t>(link)];
      if (!inside[static_cast<std::size_t>(each.to)])
        all.push_back({capacity_[static_cast<std::size_t>(link)], used_from(system, each)});
    }
  }
  std::sort(all.begin(), all.end());
  Cut& cut = cuts_.emplace_back();
  for (const Exit& exit : all) {
    if (!cut.empty() && cut.back().capacity == exit.capacity && cut.back().from == exit.from) ++cut.back().links;
    else cut.push_back(exit);
  }
}

bool Ways::joined(PathType limit) const {
  std::vector<char> seen(count_, 0);
  std::vector<int> open{0};
  seen[0] = 1;
  std::size_t reached = 0;
  while (!open.empty()) {
    const int here = open.back();
    open.pop_back();
    ++reached;
    for (const int next : after(here)) {
      if (between(here, next).type > limit) break;  // they are sorted
      if (!seen[static_cast<std::size_t>(next)]) open.push_back(next);
      seen[static_cast<std::size_t>(next)] = 1;
    }
  }
  if (reached < count_) return false;
  const auto usable = [&](const Way& each) { return each.type <= limit; };
  return ports_ == 0 || (std::any_of(in_.begin(), in_.end(), usable) && std::any_of(out_.begin(), out_.end(), usable));
}

int Ways::max_channels(std::int64_t rate, PathType limit, int most) const {
  for (const Cut& cut : cuts_) {
    std::int64_t sum = 0;
    for (const Exit& exit : cut) sum += exit.from <= limit ? exit.links * (exit.capacity / rate) : 0;
    most = static_cast<int>(std::min<std::int64_t>(most, sum));
  }
  return most;
}

}  // namespace slip::topo
