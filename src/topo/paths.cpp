// TopoPaths: paths between all pairs of nodes of a machine's graph. A breadth-first search finds the paths with the
// fewest hops. Among these the path with the highest rate wins, then the nearer type, then the path found first.
#include <algorithm>

#include "slip/topology.hpp"
#include "topo/fabric.hpp"
#include "topo/rates.hpp"

namespace slip {
namespace {

using topo::node_at;

// Whether a path may pass through a node of this kind. GPUs, cores and nets can only be the ends of a path.
bool passes(TopoKind kind) {
  return kind == TopoKind::kCpu || kind == TopoKind::kPci || kind == TopoKind::kCache || kind == TopoKind::kNic ||
         kind == TopoKind::kNvSwitch;
}

}  // namespace

double topo::link_gbps(const TopoSystem& system, int from, int to) {
  const auto found =
      std::ranges::find_if(system.links, [&](const TopoLink& link) { return link.from == from && link.to == to; });
  return found == system.links.end() ? 0 : found->gbps;
}

TopoPathType topo::type_of(const TopoSystem& system, const TopoLink& link) {
  const TopoKind from = node_at(system, link.from).kind, to = node_at(system, link.to).kind;
  switch (link.kind) {
    case LinkKind::kNvLink: return TopoPathType::kNvl;
    case LinkKind::kSys: return TopoPathType::kSys;
    case LinkKind::kNet: return TopoPathType::kLoc;  // a net (port) is part of its NIC
    case LinkKind::kPci:
    case LinkKind::kMemory: break;
  }
  if (from == TopoKind::kCpu || to == TopoKind::kCpu) return TopoPathType::kPhb;
  const bool switches = from == to && from == TopoKind::kPci;
  return switches ? TopoPathType::kPxb : TopoPathType::kPix;
}

std::vector<std::vector<int>> topo::links_from(const TopoSystem& system) {
  std::vector<std::vector<int>> links_of(system.nodes.size());
  for (std::size_t i = 0; i < system.links.size(); ++i)
    links_of[static_cast<std::size_t>(system.links[i].from)].push_back(static_cast<int>(i));
  return links_of;
}

const char* topo_path_name(TopoPathType type) {
  constexpr const char* kNames[] = {"LOC", "NVL", "PIX", "PXB", "PXN", "PHB", "SYS", "NET", "-"};
  return kNames[static_cast<std::size_t>(type)];
}

TopoPaths::TopoPaths(const TopoSystem& system, bool relayed) : count_(system.nodes.size()) {
  entries_.resize(count_ * count_);
  for (const TopoLink& link : system.links) from_.push_back(link.from);
  const std::vector<std::vector<int>> links_of = topo::links_from(system);
  for (std::size_t source = 0; source < count_; ++source) search_from(system, static_cast<int>(source), links_of);
  // If no NVLink connects two GPUs, a third with links to both forwards their data, if that is faster. NCCL calls such
  // a path NVB. Such a path is not extended again, so it passes through one GPU only.
  const auto direct = [&](int a, int b) { return at(a, b).type <= TopoPathType::kNvl && at(a, b).proxy < 0; };
  for (const int from : system.devices) {
    if (node_at(system, from).kind != TopoKind::kGpu) continue;
    std::vector<int> apart;  // usually none, so that the time grows with the pairs of GPUs
    for (const int to : system.devices) {
      if (!direct(from, to)) apart.push_back(to);
    }
    for (const int middle : apart.empty() ? apart : system.devices) {
      if (middle == from || !direct(from, middle)) continue;
      for (const int to : apart) {
        if (middle == to || !direct(middle, to)) continue;
        const double gbps = std::min(at(from, middle).gbps, at(middle, to).gbps);
        if (gbps > at(from, to).gbps) at(from, to) = {gbps, at(middle, to).last_link, middle, TopoPathType::kNvl};
      }
    }
  }
  if (relayed) pass_over_nvlink(system);
  pass_through_memory(system);
}

void TopoPaths::search_from(const TopoSystem& system, int source, const std::vector<std::vector<int>>& links_of) {
  at(source, source) = {topo::kLocalGbps, -1, -1, TopoPathType::kLoc};
  std::vector<int> frontier{source};
  std::vector<char> settled(count_, 0);
  settled[static_cast<std::size_t>(source)] = 1;
  std::size_t reached_so_far = 1;
  // Stops when all nodes are reached. This saves time, because every CPU has a link to every other CPU.
  while (!frontier.empty() && reached_so_far < count_) {
    std::vector<int> next;
    for (const int here : frontier) {
      if (here != source && !passes(node_at(system, here).kind)) continue;
      for (const int number : links_of[static_cast<std::size_t>(here)]) {
        const TopoLink& link = system.links[static_cast<std::size_t>(number)];
        if (!settled[static_cast<std::size_t>(link.to)] && extend(source, link, number, topo::type_of(system, link)))
          next.push_back(link.to);
      }
    }
    // Marks nodes as settled only after the whole level: another node of the level may find a path with a higher rate.
    for (const int reached : next) settled[static_cast<std::size_t>(reached)] = 1;
    reached_so_far += next.size();
    frontier = std::move(next);
  }
}

// Keeps the path over this link if it is the first path to the node or a better one. Returns true if it is the first.
bool TopoPaths::extend(int source, const TopoLink& link, int number, TopoPathType type) {
  const Entry& before = at(source, link.from);
  const Entry path{std::min(before.gbps, link.gbps), number, -1, std::max(before.type, type)};
  Entry& best = at(source, link.to);
  const bool first = best.last_link < 0;
  if (first || path.gbps > best.gbps || (path.gbps == best.gbps && path.type < best.type)) best = path;
  return first;
}

// If a GPU reaches a net only through a CPU, a GPU that is near the net forwards its data (NCCL's path type PXN).
// NVLink must connect the two GPUs.
void TopoPaths::pass_over_nvlink(const TopoSystem& system) {
  for (const int gpu : system.devices) {
    if (node_at(system, gpu).kind != TopoKind::kGpu) continue;
    for (const int net : system.nets) {
      if (at(gpu, net).type >= TopoPathType::kPhb && node_at(system, net).gdr) choose_proxy(system, gpu, net);
    }
  }
}

void TopoPaths::choose_proxy(const TopoSystem& system, int gpu, int net) {
  Entry& entry = at(gpu, net);
  for (const int proxy : system.devices) {
    const Entry &hop = at(gpu, proxy), &rest = at(proxy, net);
    if (hop.type != TopoPathType::kNvl || rest.type > TopoPathType::kPxb) continue;
    const double gbps = std::min(hop.gbps, rest.gbps);
    const bool better = entry.type == TopoPathType::kPxn ? gbps > entry.gbps : gbps >= entry.gbps;
    if (better) entry = {gbps, rest.last_link, proxy, TopoPathType::kPxn};
  }
}

// A net without GPUDirect RDMA cannot access GPU memory: the data goes through the memory of the net's CPU.
void TopoPaths::pass_through_memory(const TopoSystem& system) {
  for (const int net : system.nets) {
    if (node_at(system, net).gdr) continue;
    int cpu = net;
    while (node_at(system, cpu).kind != TopoKind::kCpu) cpu = node_at(system, cpu).parent;
    for (const int gpu : system.devices) {
      if (node_at(system, gpu).kind != TopoKind::kGpu || at(gpu, net).type >= TopoPathType::kPhb) continue;
      const Entry up = at(gpu, cpu), down = at(cpu, net), in = at(net, cpu), out = at(cpu, gpu);
      at(gpu, net) = {std::min(up.gbps, down.gbps), down.last_link, cpu, TopoPathType::kPhb};
      at(net, gpu) = {std::min(in.gbps, out.gbps), out.last_link, cpu, TopoPathType::kPhb};
    }
  }
}

TopoPath TopoPaths::between(int from, int to) const {
  const Entry& entry = at(from, to);
  TopoPath path{entry.type, entry.gbps, {}, entry.proxy};
  if (entry.proxy >= 0) {
    path.links = between(from, entry.proxy).links;
    const std::vector<int> rest = between(entry.proxy, to).links;
    path.links.insert(path.links.end(), rest.begin(), rest.end());
    return path;
  }
  for (int node = to; node != from && at(from, node).last_link >= 0;) {
    const int link = at(from, node).last_link;
    path.links.push_back(link);
    node = from_[static_cast<std::size_t>(link)];
  }
  std::ranges::reverse(path.links);
  return path;
}

}  // namespace slip
