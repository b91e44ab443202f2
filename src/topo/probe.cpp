// Writes hwloc's description of a machine in NCCL's XML format. hwloc reports neither NVLinks nor compute capabilities.
// So the document has no NVLinks, and sm_of() finds the compute capability of some GPUs by their PCI device id.
#ifdef SLIP_HAS_HWLOC
#include <hwloc.h>
#endif

#include <array>
#include <charconv>
#include <cmath>
#include <memory>

#include "base/fail.hpp"
#include "topo/document.hpp"
#include "topo/rates.hpp"

namespace slip::topo {
namespace {

// The NIC of a machine whose network interfaces are hidden, as in containers: TCP still reaches other machines.
XmlElement assumed_nic() {
  XmlElement net{
      "net", {{"name", "tcp"}, {"dev", "0"}, {"speed", std::to_string(kAssumedNetMbps)}, {"gdr", "0"}}, {}, 0};
  return {"nic", {}, {std::move(net)}, 0};
}

#ifdef SLIP_HAS_HWLOC

constexpr unsigned kNvidia = 0x10DE;

struct Close {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, Close>;

Topology load(const std::string& synthetic, Here here) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) throw Error(ErrorCode::kOutOfMemory, "hwloc cannot describe this machine", here);
  Topology topology(raw);
  if (!synthetic.empty() && hwloc_topology_set_synthetic(raw, synthetic.c_str()) != 0)
    base::fail(ErrorCode::kInvalidValue, here, "hwloc does not understand the machine '{}'", synthetic);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  // hwloc reads PCI devices from /sys. The component "pci" would read the same through libpciaccess, which leaks
  // memory. The other two would load an OpenCL driver and connect to an X server, and their results are not used.
  for (const char* component : {"pci", "opencl", "gl"})
    static_cast<void>(hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component));
  if (hwloc_topology_load(raw) != 0) throw Error(ErrorCode::kIo, "hwloc cannot describe this machine", here);
  return topology;
}

std::string info(hwloc_obj_t object, const char* key) {
  const char* value = hwloc_obj_get_info_by_name(object, key);
  return value ? value : "";
}

// The value of the key from the object or from its nearest ancestor that has the key.
std::string info_around(hwloc_obj_t object, const char* key) {
  for (; object; object = object->parent) {
    std::string value = info(object, key);
    if (!value.empty()) return value;
  }
  return {};
}

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

// "00000000,000000ff": groups of 32 bits, the highest first.
std::string affinity(hwloc_const_cpuset_t cpus) {
  std::string result;
  for (int group = std::max(hwloc_bitmap_last(cpus), 0) / 32; group >= 0; --group) {
    const auto bits =
        static_cast<unsigned>(hwloc_bitmap_to_ith_ulong(cpus, static_cast<unsigned>(group) / 2) >> (group % 2 * 32));
    result += fmt::format("{}{:08x}", result.empty() ? "" : ",", bits);
  }
  return result;
}

std::string cpu_list(hwloc_const_cpuset_t cpus) {
  std::array<char, 4096> text{};
  hwloc_bitmap_list_snprintf(text.data(), text.size(), cpus);
  return text.data();
}

// The compute capability of NVIDIA's data-centre GPUs, by the upper byte of the PCI device id. 0: unknown; then
// nvlink_gbps() assumes an old GPU.
int sm_of(unsigned vendor, unsigned device) {
  if (vendor != kNvidia) return 0;
  switch (device >> 8) {
    case 0x15: return 60;
    case 0x1d: return 70;
    case 0x1e: return 75;
    case 0x20: return 80;
    case 0x22:
    case 0x25: return 86;
    case 0x26:
    case 0x27: return 89;
    case 0x23: return 90;
    case 0x29: return 100;
    default: return 0;
  }
}

// hwloc gives the product of lane rate and lanes, in GB/s. This function sets the widest link, of any PCI generation,
// that has this product.
void set_link(XmlElement& pci, double gbps) {
  if (!(gbps > 0)) return;
  struct Generation {
    const char* text;
    double lane;  // GB/s
  };
  constexpr Generation kGenerations[] = {{"2.5 GT/s PCIe", 0.25},   {"5.0 GT/s PCIe", 0.5},
                                         {"8.0 GT/s PCIe", 0.985},  {"16.0 GT/s PCIe", 1.969},
                                         {"32.0 GT/s PCIe", 3.938}, {"64.0 GT/s PCIe", 7.877}};
  for (const int lanes : {16, 8, 4, 2, 1}) {
    for (const Generation& generation : kGenerations) {
      if (std::abs(generation.lane * lanes - gbps) > 0.02 * gbps) continue;
      pci.set("link_speed", generation.text);
      pci.set("link_width", std::to_string(lanes));
      return;
    }
  }
}

class Probe {
 public:
  Probe(const ProbeSource& source, Here here) : source_(source), topology_(load(source.synthetic, here)) {}

  XmlElement document() {
    XmlElement system{"system", {{"version", "1"}}, {}, 0};
    for (hwloc_obj_t numa = nullptr; (numa = hwloc_get_next_obj_by_type(topology_.get(), HWLOC_OBJ_NUMANODE, numa));) {
      if (!hwloc_bitmap_iszero(numa->cpuset)) system.children.push_back(cpu(numa));
    }
    if (system.children.empty()) system.children.push_back({"cpu", {{"numaid", "0"}}, {}, 0});
    if (nets_ == 0) system.children.front().children.push_back(assumed_nic());
    return system;
  }

 private:
  XmlElement cpu(hwloc_obj_t numa) {
    hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology_.get(), HWLOC_OBJ_PACKAGE, numa);
    hwloc_obj_t around = package ? package : numa;
    XmlElement cpu{"cpu", {}, {}, 0};
    cpu.set("numaid", std::to_string(numa->os_index));
    cpu.set("affinity", affinity(numa->cpuset));
    const std::string arch = info_around(around, "Architecture");
    cpu.set("arch", arch == "aarch64" ? "arm64" : arch);
    const std::string vendor = info_around(around, "CPUVendor");
    const std::string family = info_around(around, "CPUFamilyNumber"), model = info_around(around, "CPUModelNumber");
    if (!vendor.empty()) cpu.set("vendor", vendor);
    if (is_number(family)) cpu.set("familyid", family);
    if (is_number(model)) cpu.set("modelid", model);
    add_cores(cpu, numa);
    // hwloc attaches a PCI tree to the object that contains the cores near it. This <cpu> gets the trees of all
    // ancestors in which `numa` is the first NUMA node.
    for (hwloc_obj_t object = numa->parent; object; object = object->parent) {
      hwloc_obj_t first =
          hwloc_get_next_obj_inside_cpuset_by_type(topology_.get(), object->cpuset, HWLOC_OBJ_NUMANODE, nullptr);
      if (first != numa) break;
      add_io(cpu, object);
    }
    return cpu;
  }

  // Groups the cores that share a cache, unless all cores of the NUMA node share it.
  void add_cores(XmlElement& cpu, hwloc_obj_t numa) {
    hwloc_obj_t last = nullptr;
    const hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(topology_.get(), HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    for (hwloc_obj_t core = nullptr;
         (core = hwloc_get_next_obj_inside_cpuset_by_type(topology_.get(), numa->cpuset, type, core));) {
      XmlElement element{
          "core", {{"dev", std::to_string(core->logical_index)}, {"cpus", cpu_list(core->cpuset)}}, {}, 0};
      hwloc_obj_t cache = shared_cache(core, numa);
      if (!cache) {
        cpu.children.push_back(std::move(element));
        continue;
      }
      if (cache != last) {
        const std::string level = std::to_string(cache->attr->cache.depth),
                          bytes = std::to_string(cache->attr->cache.size);
        cpu.children.push_back({"cache", {{"level", level}, {"bytes", bytes}}, {}, 0});
      }
      last = cache;
      cpu.children.back().children.push_back(std::move(element));
    }
  }

  static hwloc_obj_t shared_cache(hwloc_obj_t core, hwloc_obj_t numa) {
    for (hwloc_obj_t object = core->parent; object; object = object->parent) {
      if (!hwloc_obj_type_is_dcache(object->type) || hwloc_bitmap_isequal(object->cpuset, core->cpuset)) continue;
      return hwloc_bitmap_isincluded(numa->cpuset, object->cpuset) ? nullptr : object;
    }
    return nullptr;
  }

  void add_io(XmlElement& into, hwloc_obj_t parent) {
    for (hwloc_obj_t object = parent->io_first_child; object; object = object->next_sibling) {
      if (object->type == HWLOC_OBJ_BRIDGE) {
        add_bridge(into, object);
      } else if (object->type == HWLOC_OBJ_PCI_DEVICE) {
        add_device(into, object);
      } else if (object->type == HWLOC_OBJ_OS_DEVICE) {
        XmlElement nic{"nic", {}, {}, 0};
        add_net(nic, object);
        if (!nic.children.empty()) into.children.push_back(std::move(nic));
      }
    }
  }

  void add_bridge(XmlElement& into, hwloc_obj_t bridge) {
    if (bridge->attr->bridge.upstream_type != HWLOC_OBJ_BRIDGE_PCI) {  // the host bridge
      add_io(into, bridge);
      return;
    }
    XmlElement pci = pci_element(bridge->attr->bridge.upstream.pci);
    add_io(pci, bridge);
    if (!pci.children.empty()) into.children.push_back(std::move(pci));
  }

  void add_device(XmlElement& into, hwloc_obj_t device) {
    const hwloc_obj_attr_u::hwloc_pcidev_attr_s& attr = device->attr->pcidev;
    const unsigned base = attr.class_id >> 8;
    XmlElement pci = pci_element(attr);
    if (base == 0x03 && attr.vendor_id == kNvidia) {
      const int sm = sm_of(attr.vendor_id, attr.device_id);
      pci.children.push_back(
          {"gpu", {{"dev", std::to_string(gpus_++)}, {"sm", std::to_string(sm)}, {"gdr", "1"}}, {}, 0});
    } else if (base == 0x02) {
      XmlElement nic{"nic", {}, {}, 0};
      for (hwloc_obj_t child = device->io_first_child; child; child = child->next_sibling) add_net(nic, child);
      if (!nic.children.empty()) pci.children.push_back(std::move(nic));
    }
    if (!pci.children.empty()) into.children.push_back(std::move(pci));
  }

  static XmlElement pci_element(const hwloc_obj_attr_u::hwloc_pcidev_attr_s& attr) {
    XmlElement pci{"pci", {}, {}, 0};
    pci.set("busid", fmt::format("{:04x}:{:02x}:{:02x}.{:x}", attr.domain, attr.bus, attr.dev, attr.func));
    pci.set("class", fmt::format("0x{:04x}00", attr.class_id));
    pci.set("vendor", fmt::format("0x{:04x}", attr.vendor_id));
    pci.set("device", fmt::format("0x{:04x}", attr.device_id));
    pci.set("subsystem_vendor", fmt::format("0x{:04x}", attr.subvendor_id));
    pci.set("subsystem_device", fmt::format("0x{:04x}", attr.subdevice_id));
    set_link(pci, static_cast<double>(attr.linkspeed));
    return pci;
  }

  // If a NIC has a network interface and an InfiniBand device, the network interface is the port: ranks use TCP.
  void add_net(XmlElement& nic, hwloc_obj_t device) {
    if (device->type != HWLOC_OBJ_OS_DEVICE || device->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK) return;
    const std::string name = device->name ? device->name : "";
    if (name.empty() || name == "lo") return;
    const std::optional<std::string> speed =
        source_.text_of ? source_.text_of("/sys/class/net/" + name + "/speed") : std::nullopt;
    int mbps = 0;
    if (speed) std::from_chars(speed->data(), speed->data() + speed->size(), mbps);
    XmlElement net{"net", {{"name", name}, {"dev", std::to_string(nets_++)}}, {}, 0};
    net.set("speed", std::to_string(mbps > 0 ? mbps : kAssumedNetMbps));
    net.set("port", "0");
    net.set("gdr", "0");
    nic.children.push_back(std::move(net));
  }

  const ProbeSource& source_;
  Topology topology_;
  int gpus_ = 0, nets_ = 0;
};

#endif

}  // namespace

#ifdef SLIP_HAS_HWLOC
std::string probe_xml(const ProbeSource& source, Here here) { return write_xml(Probe(source, here).document()); }
#else
// Without hwloc: one CPU that holds everything.
std::string probe_xml(const ProbeSource&, Here) {
  XmlElement cpu{"cpu", {{"numaid", "0"}}, {assumed_nic()}, 0};
  return write_xml({"system", {{"version", "1"}}, {std::move(cpu)}, 0});
}
#endif

}  // namespace slip::topo
