#include "topo/document.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <map>
#include <set>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "topo/xml.hpp"

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
  const auto holds = [&](std::string_view name) {
    return std::ranges::any_of(element.children, [&](const XmlElement& child) { return child.name == name; });
  };
  const std::string* const device_class = element.find("class");
  return holds("gpu") || (!holds("pci") && !holds("nic") && device_class && device_class->starts_with("0x03"));
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
  std::erase_if(hosts, [](const XmlElement& host) {
    return std::ranges::none_of(host.children, [](const XmlElement& child) { return child.name == "cpu"; });
  });
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

bool holds(const XmlElement& element, std::string_view name) {
  return std::ranges::any_of(element.children, [&](const XmlElement& child) { return child.name == name; });
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
    const bool nic = holds(element, "nic") || (device_class && device_class->starts_with("0x02"));
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

}  // namespace slip::topo
