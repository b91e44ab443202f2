#include "topo/document.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

namespace slip::topo {
namespace {

constexpr std::string_view kBroadcom = "0x1000";
constexpr std::array<std::string_view, 2> kSwitches = {"0xc010", "0xc030"};  // generations 4 and 5

bool is_large_switch(const XmlElement& element) {
  const std::string *vendor = element.find("vendor"), *device = element.find("device");
  return element.name == "pci" && vendor && device && lower_case(*vendor) == kBroadcom &&
         std::ranges::find(kSwitches, lower_case(*device)) != kSwitches.end();
}

// Appends the children of `element` to `into`.
void lift(XmlElement element, std::vector<XmlElement>& into);

XmlElement flattened_below(const XmlElement& element) {
  XmlElement result{element.name, element.attributes, {}, element.line};
  const bool large = is_large_switch(element);
  for (const XmlElement& child : element.children) {
    XmlElement flat = flattened_below(child);
    const bool inner = large && is_large_switch(flat) && !flat.children.empty();
    if (inner) lift(std::move(flat), result.children);
    else result.children.push_back(std::move(flat));
  }
  return result;
}

void lift(XmlElement element, std::vector<XmlElement>& into) {
  for (XmlElement& child : element.children) into.push_back(std::move(child));
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

XmlElement flattened(const XmlElement& root) { return flattened_below(root); }

int add_nvswitch(XmlElement& root, int links, int sm) { return NvSwitchAdder(root, links, sm).run(root); }

}  // namespace slip::topo
