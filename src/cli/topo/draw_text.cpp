#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "topo/fabric.hpp"
#include "topo/trees.hpp"

namespace slip::cli {
namespace {

constexpr std::size_t kMatrixColumns = 22;  // columns of the matrix that fit 100 characters
constexpr std::size_t kListedRings = 8;
constexpr int kShownBranches = 12;  // maximum number of children shown of each node

using topo::node_at;

class TreeText {
 public:
  explicit TreeText(const TopoSystem& system) : system_(system), below_(system.nodes.size()) {
    for (std::size_t i = 0; i < system.nodes.size(); ++i) {
      if (system.nodes[i].parent >= 0)
        below_[static_cast<std::size_t>(system.nodes[i].parent)].push_back(static_cast<int>(i));
    }
  }

  std::string text() {
    for (std::size_t i = 0; i < system_.nodes.size(); ++i) {
      if (system_.nodes[i].kind != TopoKind::kCpu) continue;
      line("", system_.nodes[i].name, "");
      children(static_cast<int>(i), "");
    }
    return std::move(out_);
  }

 private:
  void line(const std::string& branch, const std::string& name, const std::string& facts) {
    // A box character has three bytes and one column.
    const auto wide =
        static_cast<std::size_t>(std::ranges::count_if(branch, [](char c) { return (c & 0xC0) != 0x80; }));
    const std::size_t used = wide + name.size();
    const std::string gap(used < 34 ? 34 - used : 2, ' ');
    out_ += facts.empty() ? fmt::format("{}{}\n", branch, name) : fmt::format("{}{}{}{}\n", branch, name, gap, facts);
  }

  void children(int id, const std::string& indent) {
    const std::vector<int>& below = below_[static_cast<std::size_t>(id)];
    for (std::size_t i = 0; i < below.size(); ++i) {
      const bool last = i + 1 == below.size();
      if (static_cast<int>(i) == kShownBranches && !last) {
        line(indent + "└─ ", fmt::format("and {} more", below.size() - i), "");
        return;
      }
      const TopoNode& node = node_at(system_, below[i]);
      line(indent + (last ? "└─ " : "├─ "), node.name, facts(below[i], id));
      children(below[i], indent + (last ? "   " : "│  "));
    }
  }

  std::string facts(int id, int parent) const {
    const TopoNode& node = node_at(system_, id);
    std::string text = gbps_text(topo::link_gbps(system_, id, parent));
    if (node.kind == TopoKind::kGpu) text += fmt::format("  {}", node.bus_id);
    if (node.kind == TopoKind::kGpu && node.sm > 0) text += fmt::format("  sm {}", node.sm);
    for (const TopoLink& link : system_.links) {
      if (link.from != id || link.kind != LinkKind::kNvLink) continue;
      text += fmt::format("  ={}= {}", gbps_text(link.gbps), node_at(system_, link.to).name);
    }
    return text.size() > 62 ? text.substr(0, 59) + "..." : text;
  }

  const TopoSystem& system_;
  std::vector<std::vector<int>> below_;
  std::string out_;
};

std::string ring_text(const std::vector<int>& ring) {
  constexpr std::size_t kShown = 18;
  std::string text;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    if (ring.size() > kShown && i == kShown / 2) text += fmt::format("... ({} more) ", ring.size() - kShown);
    if (ring.size() > kShown && i >= kShown / 2 && i < ring.size() - kShown / 2) continue;
    text += fmt::format("{} ", ring[i]);
  }
  return text + std::to_string(ring.front());
}

std::string channels_text(const std::vector<int>& channels) {
  std::string text;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    std::size_t end = i;
    while (end + 1 < channels.size() && channels[end + 1] == channels[end] + 1) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ",", channels[i]);
    if (end > i) text += fmt::format("-{}", channels[end]);
    i = end;
  }
  return text;
}

// "net 3"; "nets 3, 0" if the ring leaves the first machine through another net than it enters.
std::string nets_text(const CommChannel& channel) {
  const int in = channel.nets.front(), out = channel.nets_out.front();
  return in == out ? fmt::format("net {} ", in) : fmt::format("nets {}, {} ", in, out);
}

void append_rings(std::string& out, const ChannelPlan& plan) {
  const auto key_of = [](const CommChannel& channel) {
    return std::tuple(channel.ring, channel.nets, channel.nets_out);
  };
  std::map<std::tuple<std::vector<int>, std::vector<int>, std::vector<int>>, std::vector<int>> same;
  std::vector<const CommChannel*> order;
  for (std::size_t c = 0; c < plan.channels.size(); ++c) {
    const CommChannel& channel = plan.channels[c];
    std::vector<int>& numbers = same[key_of(channel)];
    if (numbers.empty()) order.push_back(&channel);
    numbers.push_back(static_cast<int>(c));
  }
  for (std::size_t i = 0; i < order.size() && i < kListedRings; ++i) {
    const CommChannel& channel = *order[i];
    std::string net;
    if (!channel.nets.empty()) net = fmt::format("{:<7}", nets_text(channel));
    out += fmt::format("  {:<8}{}{}\n", channels_text(same.at(key_of(channel))), net, ring_text(channel.ring));
  }
  if (order.size() > kListedRings) out += fmt::format("  and {} more\n", order.size() - kListedRings);
}

// The name of the path's type; NVB, if a GPU between the two forwards over NVLink.
const char* path_text(const TopoPaths& paths, int from, int to) {
  const TopoPathType type = paths.type(from, to);
  return type == TopoPathType::kNvl && paths.between(from, to).proxy >= 0 ? "NVB" : topo_path_name(type);
}

}  // namespace

std::string gbps_text(double gbps) {
  return gbps >= 1000 ? "local" : gbps >= 99.95 ? fmt::format("{:.0f} GB/s", gbps) : fmt::format("{:.3g} GB/s", gbps);
}

const char* device_word(const TopoSystem& system) {
  if (system.devices.empty()) return "device";
  switch (node_at(system, system.devices.front()).kind) {
    case TopoKind::kGpu: return "GPU";
    case TopoKind::kCore: return "core";
    default: return "CPU";
  }
}

std::string draw_tree(const TopoSystem& system) { return TreeText(system).text(); }

std::string draw_paths(const TopoSystem& system) {
  const TopoPaths paths(system);
  std::vector<std::pair<std::string, int>> ends;
  const char letter = device_word(system)[0];
  for (const int id : system.devices) ends.emplace_back(fmt::format("{}{}", letter, node_at(system, id).index), id);
  for (const int id : system.nets) ends.emplace_back(fmt::format("N{}", node_at(system, id).index), id);
  // One table for every kMatrixColumns columns, one below the other.
  std::string out;
  for (std::size_t first = 0; first < ends.size(); first += kMatrixColumns) {
    const std::size_t end = std::min(first + kMatrixColumns, ends.size());
    std::size_t width = 3;
    for (std::size_t i = first; i < end; ++i) width = std::max(width, ends[i].first.size());
    out += "paths";
    for (std::size_t i = first; i < end; ++i) out += fmt::format(" {:>{}}", ends[i].first, width);
    out += '\n';
    for (const int from : system.devices) {
      out += fmt::format("{:>5}", fmt::format("{}{}", letter, node_at(system, from).index));
      for (std::size_t i = first; i < end; ++i)
        out += fmt::format(" {:>{}}", path_text(paths, from, ends[i].second), width);
      out += '\n';
    }
  }
  return out;
}

std::string draw_plan(const Cluster& cluster, const ChannelPlan& plan) {
  std::string out;
  const std::size_t channels = plan.channels.size();
  const bool several = !plan.channels.front().nets.empty();
  const std::string between = several ? fmt::format(", to the net {}", topo_path_name(plan.between)) : "";
  out += fmt::format("{} on {}\n\n", counted(cluster.ranks.size(), "rank"), counted(cluster.nodes.size(), "node"));
  out += fmt::format("rings   {} in all, {} of {}; longest path {}{}\n", gbps_text(plan.ring_gbps),
                     counted(channels, "channel"), gbps_text(plan.ring_gbps / static_cast<double>(channels)),
                     topo_path_name(plan.within), between);
  append_rings(out, plan);
  int depth = 0;
  for (const CommTree& tree : plan.channels.front().trees) depth = std::max(depth, topo::depth_of(tree));
  out += fmt::format("trees   {} in all, {} a channel, {} within a node, {} deep\n", gbps_text(plan.tree_gbps),
                     plan.channels.front().trees.size(), plan.shape == TreeShape::kChain ? "chains" : "binary", depth);
  if (several) out += fmt::format("switch  {} where the network reduces\n", gbps_text(plan.switch_gbps));
  for (const NicRelief& relief : relieve_nics(cluster.nodes.front())) {
    out += fmt::format("relief  net {}: {} instead of {} through host memory, if", relief.net,
                       gbps_text(relief.gbps_after), gbps_text(relief.gbps_before));
    for (const NicRelief::Move& move : relief.moves) out += fmt::format(" {} to {},", move.from, move.to);
    out.back() = ' ';
    out += "first over NVLink\n";
  }
  return out;
}

}  // namespace slip::cli
