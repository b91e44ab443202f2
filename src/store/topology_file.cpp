// Topology files, and this machine's topology with what the kernel's files add to it. Here because only this room reads
// files.
#include "store/topology_file.hpp"

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/env.hpp"
#include "store/text.hpp"
#include "topo/probe.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kMaxBytes = 4 << 20;  // the largest machines take some 100 KB

// One line of a file of the kernel's, which has no size that could be asked first.
std::optional<std::string> kernel_text(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

}  // namespace

TopoSystem read_topology(const std::string& path, Here here) {
  return parse_topology(read_text(path, kMaxBytes, "a topology file", here), path, here);
}

const TopoSystem& probed_topology(Here here) {
  static const TopoSystem kMachine = parse_topology(topo::probe_xml({"", kernel_text}, here), "this machine", here);
  return kMachine;
}

TopoSystem this_topology(Here here) {
  return env().topo_file.empty() ? probed_topology(here) : read_topology(env().topo_file, here);
}

}  // namespace slip
