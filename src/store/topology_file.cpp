#include "store/topology_file.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "base/env.hpp"
#include "store/file.hpp"
#include "topo/probe.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kMaxBytes = 4 << 20;  // the files of the largest machines have about 100 KB

// The first line of a file in /proc or /sys, whose size is not known in advance.
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

namespace {

std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

CoreSet read_core_list(const std::string& text) {
  CoreSet result;
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

int numa_node_of(const CoreSet& cores, const std::string& root) {
  const CoreSet nodes = read_core_list(line_of(root + "/online"));
  if (nodes.count() < 2 || cores.none()) return -1;
  for (std::size_t node = 0; node < nodes.size(); ++node) {
    if (!nodes.test(node)) continue;
    const CoreSet own = read_core_list(line_of(root + "/node" + std::to_string(node) + "/cpulist"));
    if ((cores & ~own).none()) return static_cast<int>(node);
  }
  return -1;
}

}  // namespace slip
