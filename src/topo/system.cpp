// parse_topology(): builds the graph that a topology document describes. A probed machine is written as a document
// first, so documents are the only input. Unknown elements stay in the document; the graph ignores them, and
// document_warnings() reports them.

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/fail.hpp"
#include "slip/topology.hpp"
#include "topo/document.hpp"
#include "topo/fabric.hpp"
#include "topo/rates.hpp"
#include "topo/xml.hpp"

namespace slip {
namespace {

using topo::XmlAttributes;
using topo::XmlElement;

constexpr std::size_t kMaxNodes = 1024;  // TopoPaths stores a path for each pair of nodes
constexpr std::size_t kMaxCpus = 256;    // each pair of CPUs has a link; the largest machines have 64 NUMA nodes
constexpr int kMaxIndex = 1 << 20;
// PCI classes: the base class identifies displays and networks; NVSwitches need the subclass, too.
constexpr std::int64_t kGpuClass = 0x03, kNicClass = 0x02, kNvSwitchClass = 0x0680;
constexpr std::int64_t kNvCpuClass = 0x068001;  // the CPU's end of an NVLink, on POWER9

// `parents`: the elements that may contain `child`. Each name has a space on both sides, for the search.
struct Nesting {
  const char *child, *parents;
};
constexpr Nesting kNesting[] = {
    {"cpu", " system "}, {"pci", " cpu pci "}, {"gpu", " pci "},        {"nvlink", " gpu "}, {"nic", " cpu pci "},
    {"net", " nic "},    {"cache", " cpu "},   {"core", " cpu cache "}, {"xgmi", " gpu "},
};

class GraphBuilder {
 public:
  GraphBuilder(const std::string& file, Here here) : file_(file), here_(here) { system_.name = file; }

  TopoSystem build(const XmlElement& root) {
    if (root.name != "system")
      fail(root, fmt::format("<{}> is not a topology: it must begin with <system>", root.name));
    of(root).number_or("version", 1, 0, 1 << 16);
    check_nesting(root);
    const XmlElement flat = topo::flattened(root);
    for (const XmlElement& child : flat.children) {
      if (child.name == "cpu") add_cpu(child);
    }
    if (cpus_.empty()) fail(root, "<system> has no <cpu>");
    connect_cpus();
    connect_nvlinks();
    choose_devices();
    system_.xml = topo::write_xml(root);
    return std::move(system_);
  }

 private:
  [[noreturn]] void fail(const XmlElement& at, const std::string& what) const {
    base::fail(ErrorCode::kParse, here_, "'{}', line {}: {}", file_, at.line, what);
  }
  XmlAttributes of(const XmlElement& element) const { return {element, file_, here_}; }

  void check_nesting(const XmlElement& parent) const {
    for (const XmlElement& child : parent.children) {
      for (const Nesting& rule : kNesting) {
        if (child.name != rule.child) continue;
        if (std::string_view(rule.parents).find(' ' + parent.name + ' ') == std::string_view::npos)
          fail(child, fmt::format("<{}> within <{}>: it belongs within{}", child.name, parent.name, rule.parents));
      }
      check_nesting(child);
    }
  }

  int add_node(const XmlElement& element, TopoNode node) {
    if (system_.nodes.size() >= kMaxNodes) fail(element, fmt::format("more than {} nodes", kMaxNodes));
    system_.nodes.push_back(std::move(node));
    return static_cast<int>(system_.nodes.size()) - 1;
  }

  // Adds a link in each direction.
  void connect(int a, int b, LinkKind kind, double gbps) {
    system_.links.push_back({a, b, kind, gbps});
    system_.links.push_back({b, a, kind, gbps});
  }

  // Throws if another element of the same name has the same value of the attribute.
  void claim(const XmlElement& element, const char* attribute, const std::string& value) {
    const auto [entry, fresh] = claimed_.emplace(element.name + ' ' + attribute + ' ' + value, element.line);
    if (!fresh) of(element).refuse(attribute, fmt::format("is taken already, in line {}", entry->second));
  }

  void add_cpu(const XmlElement& cpu) {
    const XmlAttributes values = of(cpu);
    const auto numa = static_cast<int>(values.number("numaid", -1, kMaxIndex));
    const std::string host = values.text_or("host_hash", "");
    if (!cpus_.empty() && host != host_)
      values.refuse("host_hash", fmt::format("another host than '{}': give each host its own file", host_));
    host_ = host;
    // After the check of the host, because the CPUs of another host may have the same numbers.
    claim(cpu, "numaid", std::to_string(numa));
    const std::string affinity = values.text_or("affinity", "");
    if (affinity.find_first_not_of("0123456789abcdefABCDEF,") != std::string::npos)
      values.refuse("affinity", "must be hexadecimal digits and commas");
    const auto family = static_cast<int>(values.number_or("familyid", 0, 0, kMaxIndex));
    const auto model = static_cast<int>(values.number_or("modelid", 0, 0, kMaxIndex));
    if (cpus_.empty())
      numa_gbps_ = topo::numa_gbps({values.text_or("arch", ""), values.text_or("vendor", ""), family, model});
    if (cpus_.size() >= kMaxCpus)
      fail(cpu,
           fmt::format("more than {} <cpu>: each pair of them has a link; leave out those without devices", kMaxCpus));
    const int node = add_node(cpu, {.kind = TopoKind::kCpu, .index = numa, .name = fmt::format("CPU {}", numa)});
    cpus_.push_back(node);
    for (const XmlElement& child : cpu.children) add_below_cpu(child, node);
  }

  void add_below_cpu(const XmlElement& child, int cpu) {
    if (child.name == "pci") add_pci(child, cpu);
    if (child.name == "nic") add_nic(child, cpu, topo::kLocalGbps, {});
    if (child.name == "core") add_core(child, cpu);
    if (child.name != "cache") return;
    const int index = caches_++;
    const int cache = add_node(
        child, {.kind = TopoKind::kCache, .index = index, .parent = cpu, .name = fmt::format("cache {}", index)});
    double gbps = 0;
    for (const XmlElement& core : child.children) {
      if (core.name == "core") gbps += add_core(core, cache);
    }
    connect(cache, cpu, LinkKind::kMemory, std::max(gbps, topo::kCoreGbps));
  }

  double add_core(const XmlElement& core, int parent) {
    const XmlAttributes values = of(core);
    const auto dev = static_cast<int>(values.number("dev", 0, kMaxIndex));
    claim(core, "dev", std::to_string(dev));
    const double gbps = values.real_or("bw", topo::kCoreGbps, 0.001, topo::kLocalGbps);
    const int node =
        add_node(core, {.kind = TopoKind::kCore, .index = dev, .parent = parent, .name = fmt::format("core {}", dev)});
    cores_.push_back(node);
    connect(node, parent, LinkKind::kMemory, gbps);
    return gbps;
  }

  void add_pci(const XmlElement& pci, int parent) {
    const XmlAttributes values = of(pci);
    const std::string bus_id = topo::lower_case(values.text("busid"));
    if (!topo::is_bus_id(bus_id)) values.refuse("busid", "must be a PCI address such as 0000:10:1c.0");
    if (!buses_.insert(bus_id).second) shared_.insert(bus_id);
    const std::int64_t device_class = values.number_or("class", 0, 0, 0xFFFFFF) >> 8;
    const auto lanes = static_cast<int>(values.number_or("link_width", 0, 0, 64));
    const std::string speed = values.text_or("link_speed", "");
    const std::optional<double> gbps = topo::pci_gbps(speed, lanes);
    if (!gbps) values.refuse("link_speed", "must be like '16 GT/s', from 0.1 to 512");
    // Published files leave out <gpu> and <nic>, which NCCL adds at run time. Then the PCI class decides.
    const bool leaf = !pci.holds("pci");
    const bool gpu = pci.holds("gpu") || (leaf && !pci.holds("nic") && device_class >> 8 == kGpuClass);
    const bool nic = pci.holds("nic") || (leaf && device_class >> 8 == kNicClass);
    if (gpu) add_gpu(pci, parent, *gbps, bus_id);
    if (nic) add_nics(pci, parent, *gbps, bus_id);
    if (gpu || nic) {
      if (!leaf)
        fail(pci, fmt::format("<pci> {} holds a device and other <pci>: it may hold only one of the two", bus_id));
      return;
    }
    if (leaf) return;  // a device that collectives do not use
    const int node = add_switch(pci, parent, *gbps, bus_id);
    for (const XmlElement& child : pci.children) {
      if (child.name == "pci") add_pci(child, node);
    }
  }

  int add_switch(const XmlElement& pci, int parent, double gbps, const std::string& bus_id) {
    const int node = add_node(pci, {.kind = TopoKind::kPci,
                                    .index = switches_++,
                                    .parent = parent,
                                    .name = fmt::format("PCI {}", bus_id),
                                    .bus_id = bus_id});
    connect(node, parent, LinkKind::kPci, gbps);
    return node;
  }

  // A slot may hold several GPUs, which share its link.
  void add_gpu(const XmlElement& pci, int parent, double gbps, const std::string& bus_id) {
    std::vector<const XmlElement*> gpus;
    for (const XmlElement& child : pci.children) {
      if (child.name == "gpu") gpus.push_back(&child);
    }
    if (gpus.size() > 1) {
      shared_.insert(bus_id);
      parent = add_switch(pci, parent, gbps, bus_id);
    }
    if (gpus.empty()) gpus.push_back(nullptr);
    for (const XmlElement* const gpu : gpus) {
      TopoNode node{.kind = TopoKind::kGpu, .index = -1, .parent = parent, .name = {}, .bus_id = bus_id};
      if (gpu) {
        const XmlAttributes values = of(*gpu);
        node.index = static_cast<int>(values.number("dev", 0, kMaxIndex));
        node.sm = static_cast<int>(values.number_or("sm", 0, 0, 1000));
        values.number_or("rank", -1, -1, kMaxIndex);  // only checked, like "gdr"
        values.number_or("gdr", 0, 0, 1);
        claim(*gpu, "dev", std::to_string(node.index));
      }
      const int id = add_node(pci, std::move(node));
      gpus_.push_back({id, gpu});
      connect(id, parent, LinkKind::kPci, gbps);
    }
  }

  void add_nics(const XmlElement& pci, int parent, double gbps, const std::string& bus_id) {
    bool any = false;
    for (const XmlElement& child : pci.children) {
      if (child.name != "nic") continue;
      add_nic(child, parent, gbps, bus_id);
      any = true;
    }
    if (any) return;
    const int nic = add_nic(pci, parent, gbps, bus_id);
    // The file does not state the speed of the port: assume the rate of the PCI slot.
    add_net(pci, nic, {.kind = TopoKind::kNet, .index = -1, .parent = nic, .name = {}}, gbps);
  }

  int add_nic(const XmlElement& element, int parent, double gbps, const std::string& bus_id) {
    const int index = nics_++;
    const int nic = add_node(element, {.kind = TopoKind::kNic,
                                       .index = index,
                                       .parent = parent,
                                       .name = fmt::format("NIC {}", bus_id.empty() ? std::to_string(index) : bus_id),
                                       .bus_id = bus_id});
    connect(nic, parent, LinkKind::kPci, gbps);
    for (const XmlElement& net : element.children) {
      if (net.name != "net") continue;
      const XmlAttributes values = of(net);
      const auto dev = static_cast<int>(values.number("dev", 0, kMaxIndex));
      claim(net, "dev", std::to_string(dev));
      auto mbps = static_cast<double>(values.number_or("speed", 0, -1, 100'000'000));
      if (mbps <= 0) mbps = topo::kAssumedNetMbps;
      values.number_or("port", 0, 0, kMaxIndex);  // only checked, like the next two
      values.number_or("maxconn", 1, 0, INT64_MAX);
      values.real_or("latency", 0, 0, 1e9);
      TopoNode node{.kind = TopoKind::kNet, .index = dev, .parent = nic, .name = {}};
      node.gdr = values.number_or("gdr", 1, 0, 1) != 0;
      node.name = values.text_or("name", "");
      add_net(net, nic, std::move(node), mbps / 8000);
    }
    return nic;
  }

  void add_net(const XmlElement& element, int nic, TopoNode node, double gbps) {
    const int net = add_node(element, std::move(node));
    system_.nets.push_back(net);
    connect(nic, net, LinkKind::kNet, gbps);
  }

  void connect_cpus() {
    for (std::size_t a = 0; a < cpus_.size(); ++a) {
      for (std::size_t b = a + 1; b < cpus_.size(); ++b) connect(cpus_[a], cpus_[b], LinkKind::kSys, numa_gbps_);
    }
  }

  // The NVLinks and xGMI links that the file lists: how many lead from a GPU to another GPU, or to a switch (kHub).
  struct LinkCount {
    int count = 0;
    const XmlElement* element = nullptr;
    std::string_view arch = {};  // of the GPU where it begins
  };
  using NvLinks = std::map<std::pair<int, int>, LinkCount>;
  static constexpr int kHub = -1;

  void read_nvlink(int gpu, const XmlElement& nvlink, std::string_view arch, const std::map<std::string, int>& gpu_at,
                   NvLinks& into) {
    const XmlAttributes values = of(nvlink);
    const std::string target = topo::lower_case(values.text("target"));
    if (!topo::is_bus_id(target)) values.refuse("target", "must be a PCI address such as 0000:10:1c.0");
    const auto count = static_cast<int>(values.number("count", 1, 1024));
    const auto found = gpu_at.find(target);
    const bool known = found != gpu_at.end();
    if (known) values.number_or("tclass", 0, 0, 0xFFFFFF);
    else if (const std::int64_t target_class = values.number("tclass", 0, 0xFFFFFF); target_class == kNvCpuClass)
      return connect_to_memory(gpu, count * topo::nvlink_gbps(node_of(gpu).sm));
    // The target is a GPU that the file does not list: a file lists only the GPUs that its program may use.
    else if (target_class >> 8 != kNvSwitchClass) return;
    if (known && found->second == gpu) return;  // published files have links of a GPU to itself
    LinkCount& links = into[{gpu, known ? found->second : kHub}];
    links = {links.count + count, &nvlink, arch};
  }

  // `bw` is in MB/s, of each of `count` links.
  void connect_c2c(int gpu, const XmlElement& c2c) {
    const XmlAttributes values = of(c2c);
    const auto count = static_cast<double>(values.number("count", 1, 1024));
    const auto mbps = static_cast<double>(values.number("bw", 1, 10'000'000));
    connect_to_memory(gpu, count * mbps / 1e3);
  }
  // A link of a GPU to the memory of its CPU, beside its PCI slot.
  void connect_to_memory(int gpu, double gbps) {
    int cpu = gpu;
    while (node_of(cpu).kind != TopoKind::kCpu) cpu = node_of(cpu).parent;
    connect(gpu, cpu, LinkKind::kMemory, gbps);
  }

  void connect_nvlinks() {
    std::map<std::string, int> gpu_at;  // if GPUs share an address, the first of them
    for (const auto& [id, gpu] : gpus_) gpu_at.emplace(node_of(id).bus_id, id);
    NvLinks found;
    for (const auto& [node, gpu] : gpus_) {
      if (!gpu) continue;
      for (const XmlElement& child : gpu->children) {
        const std::string* const arch = gpu->find("gcn");
        if (child.name == "nvlink" || child.name == "xgmi")
          read_nvlink(node, child, arch ? *arch : std::string_view(), gpu_at, found);
        if (child.name == "c2c") connect_c2c(node, child);
      }
    }
    for (const auto& [ends, links] : found) {
      if (ends.second == kHub) continue;
      const auto back = found.find({ends.second, ends.first});
      const int links_back = back == found.end() ? 0 : back->second.count;
      const bool shared = shared_.contains(node_of(ends.first).bus_id) || shared_.contains(node_of(ends.second).bus_id);
      if (links_back != links.count && !shared)
        of(*links.element)
            .refuse("count", fmt::format("{} lists {} links back; both directions must have the same number",
                                         node_of(ends.second).bus_id, links_back));
      if (ends.first < ends.second || links_back == 0)
        connect(ends.first, ends.second, LinkKind::kNvLink, rate(ends.first, links));
    }
    int hub = -1;
    for (const auto& [ends, links] : found) {
      if (ends.second != kHub) continue;
      if (hub < 0) hub = add_node(*links.element, {.kind = TopoKind::kNvSwitch, .name = "NVSwitch"});
      connect(ends.first, hub, LinkKind::kNvLink, rate(ends.first, links));
    }
  }

  double rate(int gpu, const LinkCount& links) const {
    return links.count *
           (links.element->name == "xgmi" ? topo::xgmi_gbps(links.arch) : topo::nvlink_gbps(node_of(gpu).sm));
  }
  const TopoNode& node_of(int id) const { return topo::node_at(system_, id); }

  // Names the GPUs or nets. Those without an index get the lowest unused numbers, in the order of the file.
  void number(const std::vector<int>& nodes, const char* what) {
    std::vector<int> taken;
    for (const int id : nodes) taken.push_back(node_of(id).index);
    int next = 0;
    for (const int id : nodes) {
      TopoNode& one = system_.nodes[static_cast<std::size_t>(id)];
      if (one.index < 0) {
        while (std::ranges::find(taken, next) != taken.end()) ++next;
        one.index = next++;
      }
      one.name = one.name.empty() ? fmt::format("{} {}", what, one.index) : fmt::format("{} {}", what, one.name);
    }
  }

  void choose_devices() {
    std::vector<int> gpus;
    for (const auto& [node, gpu] : gpus_) gpus.push_back(node);
    number(gpus, "GPU");
    number(system_.nets, "net");
    const auto index_of = [&](int id) { return node_of(id).index; };
    system_.devices = !gpus.empty() ? gpus : !cores_.empty() ? cores_ : cpus_;
    std::ranges::sort(system_.devices, {}, index_of);
    std::ranges::sort(system_.nets, {}, index_of);
  }

  const std::string& file_;
  Here here_;
  TopoSystem system_;
  std::map<std::string, int> claimed_;  // "element attribute value", and the line of the element
  std::set<std::string> buses_;         // of all <pci>
  std::set<std::string> shared_;        // bus ids that several GPUs or <pci> elements have
  std::vector<int> cpus_, cores_;
  std::vector<std::pair<int, const XmlElement*>> gpus_;  // the node, and the element: null if the file leaves it out
  std::string host_;
  double numa_gbps_ = 0;
  int switches_ = 0, nics_ = 0, caches_ = 0;
};

}  // namespace

TopoSystem parse_topology(std::string_view xml, const std::string& name, Here here) {
  const XmlElement root = topo::parse_xml(xml, name, here);
  return GraphBuilder(name, here).build(root);
}

std::vector<TopoSystem> topo::parse_topologies(std::string_view xml, const std::string& name, Here here) {
  const std::vector<XmlElement> hosts = hosts_of(parse_xml(xml, name, here));
  std::vector<TopoSystem> result;
  for (const XmlElement& host : hosts) {
    result.push_back(GraphBuilder(name, here).build(host));
    if (hosts.size() > 1) result.back().name += fmt::format(", host {}", result.size() - 1);
  }
  return result;
}

TopoSystem topo::with_nvswitch(const TopoSystem& system, int links, int sm, Here here) {
  XmlElement root = parse_xml(system.xml, system.name, here);
  if (add_nvswitch(root, links, sm) == 0)
    base::fail(ErrorCode::kInvalidValue, here, "'{}' has NVLinks or no GPUs: no NVSwitch can be added", system.name);
  return GraphBuilder(system.name, here).build(root);
}

}  // namespace slip
