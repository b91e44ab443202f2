#include "store/topology_file.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>

#include "base/env.hpp"
#include "store/file.hpp"
#include "topo/document.hpp"

namespace slip::store {
namespace {

constexpr std::uint64_t kMaxBytes = 4 << 20;  // the files of the largest machines have about 100 KB

// The first line of a file in /proc or /sys, whose size is not known in advance. Nothing: it cannot be read, or is
// empty.
std::optional<std::string> kernel_text(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

}  // namespace

const TopoSystem& probed_topology(Here here) {
  static const TopoSystem kMachine = parse_topology(topo::probe_xml({"", kernel_text}, here), "this machine", here);
  return kMachine;
}

base::CoreSet read_core_list(const std::string& text) {
  base::CoreSet result;
  const char *at = text.data(), *const end = at + text.size();
  while (at < end) {
    std::size_t first = 0, last = 0;
    auto [next, error] = std::from_chars(at, end, first);
    if (error != std::errc()) return {};
    last = first;
    if (next < end && *next == '-') {
      const auto range = std::from_chars(next + 1, end, last);
      if (range.ec != std::errc()) return {};
      next = range.ptr;
    }
    for (std::size_t core = first; core <= std::min(last, result.size() - 1); ++core) result.set(core);
    if (next < end && *next != ',') return {};
    at = next + 1;
  }
  return result;
}

int numa_node_of(const base::CoreSet& cores, const std::string& root) {
  const base::CoreSet nodes = read_core_list(kernel_text(root + "/online").value_or(""));
  if (nodes.count() < 2 || cores.none()) return -1;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (!nodes.test(node)) continue;
    const base::CoreSet own =
        read_core_list(kernel_text(root + "/node" + std::to_string(node) + "/cpulist").value_or(""));
    if ((cores & ~own).none()) return static_cast<int>(node);
  }
  return -1;
}

TopologyFile read_topology_file(const std::string& path, Here here) {
  const std::string text = read_text(path, kMaxBytes, "a topology file", here);
  return {topo::parse_topologies(text, path, here), topo::document_warnings(text, path, here)};
}

}  // namespace slip::store

namespace slip {

TopoSystem read_topology(const std::string& path, Here here) {
  return parse_topology(store::read_text(path, store::kMaxBytes, "a topology file", here), path, here);
}

TopoSystem this_topology(Here here) {
  return base::env().topo_file.empty() ? store::probed_topology(here) : read_topology(base::env().topo_file, here);
}

}  // namespace slip
