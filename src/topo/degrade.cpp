#include "topo/degrade.hpp"

#include <algorithm>
#include <vector>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "topo/fabric.hpp"

namespace slip::topo {
namespace {

const char* word_of(TopoKind kind) {
  switch (kind) {
    case TopoKind::kCpu: return "CPU";
    case TopoKind::kPci: return "PCI";
    case TopoKind::kGpu: return "GPU";
    case TopoKind::kCore: return "CORE";
    case TopoKind::kCache: return "CACHE";
    case TopoKind::kNic: return "NIC";
    case TopoKind::kNet: return "NET";
    case TopoKind::kNvSwitch: break;
  }
  return "NVS";
}

std::string name_of(const TopoNode& node) {
  return node.kind == TopoKind::kNvSwitch ? "NVS" : fmt::format("{}{}", word_of(node.kind), node.index);
}

[[noreturn]] void refuse(const TopoSystem& system, std::string_view part, Here here) {
  constexpr std::size_t kShown = 24;
  std::string names;
  std::size_t count = 0;
  for (const TopoNode& node : system.nodes) {
    if (++count <= kShown) names += (names.empty() ? "" : ", ") + name_of(node);
  }
  base::fail(
      ErrorCode::kInvalidValue, here,
      "'{}': '{}' has no such part. Parts are nic:NUMBER, net:NUMBER, link:A (towards its CPU) and link:A-B, where "
      "A and B are among {}{}",
      part, system.name, names, count > kShown ? ", ..." : "");
}

int node_named(const TopoSystem& system, std::string_view name) {
  const auto found = std::ranges::find_if(system.nodes, [&](const TopoNode& node) { return name_of(node) == name; });
  return found == system.nodes.end() ? -1 : static_cast<int>(found - system.nodes.begin());
}

// The links of "A" or "A-B": the index of one direction of each.
std::vector<std::size_t> links_named(const TopoSystem& system, std::string_view name) {
  const std::size_t dash = name.find('-');
  const int a = node_named(system, name.substr(0, dash));
  const int b = a < 0                            ? -1
                : dash == std::string_view::npos ? node_at(system, a).parent
                                                 : node_named(system, name.substr(dash + 1));
  std::vector<std::size_t> links;
  for (std::size_t i = 0; a >= 0 && b >= 0 && i < system.links.size(); i += 2) {
    const TopoLink& link = system.links[i];
    if ((link.from == a && link.to == b) || (link.from == b && link.to == a)) links.push_back(i);
  }
  return links;
}

// The nets of "nic:2" or "net:3", as nodes.
std::vector<int> nets_named(const TopoSystem& system, std::string_view part) {
  std::vector<int> nets;
  const auto number = base::parse_number<int>(part.substr(4), 0, 1 << 20);
  for (const int net : system.nets) {
    const TopoNode& node = node_at(system, net);
    const int index = part.starts_with("nic:") ? node_at(system, node.parent).index : node.index;
    if (number && index == *number) nets.push_back(net);
  }
  return nets;
}

bool is_port(std::string_view part) { return part.starts_with("nic:") || part.starts_with("net:"); }
bool is_link(std::string_view part) { return part.starts_with("link:"); }

// Leaves out the nets that no device reaches any more, as if their NIC had failed.
void drop_unreachable_nets(TopoSystem& system) {
  const TopoPaths paths(system);
  std::erase_if(system.nets, [&](int net) {
    return std::ranges::none_of(system.devices, [&](int device) { return paths.gbps(device, net) > 0; });
  });
}

// Machines with equal XML are treated as equal. An XML comment makes this machine differ from the others.
void mark(TopoSystem& system, std::string_view what) { system.xml += fmt::format("<!-- {} -->\n", what); }

}  // namespace

TopoSystem without_part(TopoSystem system, std::string_view part, Here here) {
  if (is_port(part)) {
    const std::vector<int> nets = nets_named(system, part);
    if (nets.empty()) refuse(system, part, here);
    std::erase_if(system.nets, [&](int net) { return std::ranges::find(nets, net) != nets.end(); });
  } else {
    const std::vector<std::size_t> links =
        is_link(part) ? links_named(system, part.substr(5)) : std::vector<std::size_t>();
    if (links.empty()) refuse(system, part, here);
    // Erases both directions of each link. It begins with the last link, so that the other indices stay valid.
    for (auto link = links.rbegin(); link != links.rend(); ++link) {
      const auto at = system.links.begin() + static_cast<std::ptrdiff_t>(*link);
      system.links.erase(at, at + 2);
    }
    drop_unreachable_nets(system);
  }
  mark(system, fmt::format("without {}", part));
  return system;
}

TopoSystem with_slow_part(TopoSystem system, std::string_view part, double share, Here here) {
  if (!(share > 0 && share < 1))
    base::fail(ErrorCode::kInvalidValue, here, "'{}' at {} of its rate: the share must be between 0 and 1", part,
               share);
  std::vector<std::size_t> links;
  if (is_link(part)) links = links_named(system, part.substr(5));
  if (is_port(part)) {
    for (const int net : nets_named(system, part)) {
      for (std::size_t i = 0; i < system.links.size(); i += 2) {
        if (system.links[i].to == net || system.links[i].from == net) links.push_back(i);
      }
    }
  }
  if (links.empty()) refuse(system, part, here);
  for (const std::size_t link : links) {
    system.links[link].gbps *= share;
    system.links[link + 1].gbps *= share;
  }
  mark(system, fmt::format("{} at {}", part, share));
  return system;
}

}  // namespace slip::topo
