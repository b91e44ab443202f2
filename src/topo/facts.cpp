#include "topo/facts.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "topo/xml.hpp"

namespace slip::topo {
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
