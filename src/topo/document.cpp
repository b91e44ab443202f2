#include "topo/document.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "topo/fabric.hpp"

namespace slip::topo {
namespace {

constexpr std::string_view kBroadcom = "0x1000";
constexpr std::array<std::string_view, 2> kSwitches = {"0xc010", "0xc030"};  // generations 4 and 5

bool is_large_switch(const XmlElement& element) {
  const std::string *vendor = element.find("vendor"), *device = element.find("device");
  return element.name == "pci" && vendor && device && lower_case(*vendor) == kBroadcom &&
         std::ranges::find(kSwitches, lower_case(*device)) != kSwitches.end();
}

bool is_gpu_slot(const XmlElement& element) {
  if (element.name != "pci") return false;
  const std::string* const device_class = element.find("class");
  return element.holds("gpu") ||
         (!element.holds("pci") && !element.holds("nic") && device_class && device_class->starts_with("0x03"));
}

void collect_devices(const XmlElement& element, std::set<std::string>& taken) {
  const std::string* const dev = element.name == "gpu" ? element.find("dev") : nullptr;
  if (dev) taken.insert(*dev);
  for (const XmlElement& child : element.children) collect_devices(child, taken);
}

class NvSwitchAdder {
 public:
  NvSwitchAdder(const XmlElement& root, int links, int sm) : links_(links), sm_(sm) { collect_devices(root, taken_); }

  int run(XmlElement& element) {
    int changed = 0;
    if (is_gpu_slot(element)) {
      if (element.children.empty()) element.children.push_back(new_gpu(element.line));
      const std::string* const bus_id = element.find("busid");
      for (XmlElement& child : element.children)
        changed += child.name == "gpu" && add(child, bus_id ? *bus_id : "") ? 1 : 0;
      return changed;
    }
    for (XmlElement& child : element.children) changed += run(child);
    return changed;
  }

 private:
  XmlElement new_gpu(int line) {
    while (taken_.contains(std::to_string(next_))) ++next_;
    XmlElement gpu{"gpu", {}, {}, line};
    gpu.set("dev", std::to_string(next_++));
    return gpu;
  }
  // Returns false if the GPU has an NVLink. Published files have links of a GPU to itself; these are ignored.
  bool add(XmlElement& gpu, const std::string& bus_id) const {
    const auto linked = [&](const XmlElement& child) {
      const std::string* const target = child.find("target");
      const bool itself = target && lower_case(*target) == lower_case(bus_id);
      return (child.name == "nvlink" || child.name == "xgmi") && !itself;
    };
    if (std::ranges::any_of(gpu.children, linked)) return false;
    if (!gpu.find("sm")) gpu.set("sm", std::to_string(sm_));
    XmlElement nvlink{"nvlink", {}, {}, gpu.line};
    nvlink.set("target", "0000:fe:00.0");  // any address: the class below identifies the target as an NVSwitch
    nvlink.set("count", std::to_string(links_));
    nvlink.set("tclass", "0x068000");
    gpu.children.push_back(std::move(nvlink));
    return true;
  }

  const int links_, sm_;
  std::set<std::string> taken_;
  int next_ = 0;
};

}  // namespace

XmlElement flattened(const XmlElement& root) {
  XmlElement result{root.name, root.attributes, {}, root.line};
  const bool large = is_large_switch(root);
  for (const XmlElement& child : root.children) {
    XmlElement flat = flattened(child);
    const bool inner = large && is_large_switch(flat) && !flat.children.empty();
    if (inner) std::ranges::move(flat.children, std::back_inserter(result.children));
    else result.children.push_back(std::move(flat));
  }
  return result;
}

std::vector<XmlElement> hosts_of(const XmlElement& root) {
  std::vector<XmlElement> hosts;
  std::map<std::string, std::size_t> known;
  for (const XmlElement& child : root.children) {
    const std::string* const hash = child.name == "cpu" ? child.find("host_hash") : nullptr;
    const auto [entry, fresh] = known.emplace(hash ? *hash : "", hosts.size());
    if (fresh) hosts.push_back({root.name, root.attributes, {}, root.line});
    hosts[entry->second].children.push_back(child);
  }
  if (hosts.size() < 2) return {root};
  for (XmlElement& host : hosts) {
    for (XmlElement& child : host.children)
      std::erase_if(child.attributes, [](const auto& attribute) { return attribute.first == "host_hash"; });
  }
  // Elements that are no <cpu> belong to no host.
  std::erase_if(hosts, [](const XmlElement& host) { return !host.holds("cpu"); });
  return hosts.empty() ? std::vector<XmlElement>{root} : hosts;
}

int add_nvswitch(XmlElement& root, int links, int sm) { return NvSwitchAdder(root, links, sm).run(root); }

namespace {

constexpr std::array<std::string_view, 11> kUsed = {"system", "cpu", "pci",  "gpu",   "nvlink", "xgmi",
                                                    "nic",    "net", "core", "cache", "c2c"};

template <class Visit>
void each_element(const XmlElement& element, const XmlElement* parent, const Visit& visit) {
  visit(element, parent);
  for (const XmlElement& child : element.children) each_element(child, &element, visit);
}

int vendor_of(const XmlElement& pci) {
  const std::string* const text = pci.find("vendor");
  if (!text || !text->starts_with("0x")) return 0;
  return base::parse_number<int>(std::string_view(*text).substr(2), 0, 0xFFFF, 16).value_or(0);
}

// Lines of elements: of the first one, and how many there are.
struct Lines {
  int first = 0, count = 0;
};
std::string lines_text(const Lines& lines) {
  return fmt::format("line {}{}", lines.first, lines.count > 1 ? fmt::format(" and {} more", lines.count - 1) : "");
}

}  // namespace

MachineFacts facts_of(const TopoSystem& system, Here here) {
  MachineFacts facts;
  const XmlElement root = parse_xml(system.xml, system.name, here);
  each_element(root, nullptr, [&](const XmlElement& element, const XmlElement*) {
    if (const std::string* const arch = element.name == "gpu" ? element.find("gcn") : nullptr)
      facts.gpu_archs.push_back(*arch);
    const std::string* const device_class = element.name == "pci" ? element.find("class") : nullptr;
    const bool nic = element.holds("nic") || (device_class && device_class->starts_with("0x02"));
    if (element.name == "pci" && nic && vendor_of(element) > 0) facts.nic_vendors.push_back(vendor_of(element));
    if (element.name == "net")
      facts.net_latency_us =
          std::max(facts.net_latency_us, XmlAttributes(element, system.name, here).real_or("latency", 0, 0, 1e9));
  });
  return facts;
}

std::vector<std::string> document_warnings(std::string_view xml, const std::string& name, Here here) {
  std::map<std::string, Lines> ignored;
  std::map<std::pair<std::string, std::string>, std::vector<int>> bus_ids;  // by host and busid: their lines
  std::string host;
  const XmlElement root = parse_xml(xml, name, here);
  each_element(root, nullptr, [&](const XmlElement& element, const XmlElement* parent) {
    const std::string* const hash = element.name == "cpu" ? element.find("host_hash") : nullptr;
    if (element.name == "cpu") host = hash ? *hash : "";
    const bool used = std::ranges::find(kUsed, element.name) != kUsed.end();
    const bool misplaced = element.name == "c2c" && parent && parent->name != "gpu";
    if (!used || misplaced) {
      Lines& lines = ignored.try_emplace(element.name, Lines{element.line, 0}).first->second;
      ++lines.count;
    }
    const std::string* const bus_id = element.name == "pci" ? element.find("busid") : nullptr;
    if (bus_id) bus_ids[{host, lower_case(*bus_id)}].push_back(element.line);
  });
  std::vector<std::string> warnings;
  std::string names;
  for (const auto& [element, lines] : ignored)
    names += fmt::format("{}<{}> ({})", names.empty() ? "" : ", ", element, lines_text(lines));
  if (!names.empty()) warnings.push_back(fmt::format("'{}': ignored elements: {}", name, names));
  for (const auto& [place, lines] : bus_ids) {
    if (lines.size() > 1)
      warnings.push_back(fmt::format(
          "'{}', line {}: busid {} is repeated, line {} has it, too. Both are kept; NVLinks to it lead to the "
          "first",
          name, lines[1], place.second, lines[0]));
  }
  return warnings;
}

std::vector<std::string> machine_warnings(const TopoSystem& system) {
  const bool linked =
      std::ranges::any_of(system.links, [](const TopoLink& link) { return link.kind == LinkKind::kNvLink; });
  const bool gpus = system.devices.size() > 1 &&
                    system.nodes[static_cast<std::size_t>(system.devices.front())].kind == TopoKind::kGpu;
  if (!gpus || linked) return {};
  return {fmt::format(
      "'{}': no NVLinks between its {} GPUs. Files of cloud providers leave them out, as NCCL finds them at run time; "
      "`slip topo --nvlink 18 --sm 90` adds an NVSwitch",
      system.name, system.devices.size())};
}

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
