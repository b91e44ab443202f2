// The machines that `slip topo` shows: those of files, with an NVSwitch added, or with a broken or slow part.
#include <algorithm>
#include <cstdio>

#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/topo/topo.hpp"
#include "store/topology_file.hpp"
#include "topo/document.hpp"

namespace slip::cli {
namespace {

constexpr std::size_t kMaxRanks = 4096;                     // trees and rings are stored and printed for all ranks
constexpr std::size_t kMaxAllRanks = std::size_t{1} << 30;  // folded

// "link:PCI0=50%": the part and its share of the rate.
std::pair<std::string, double> slow_part(const std::string& text) {
  const std::size_t sign = text.rfind('=');
  const bool percent = text.ends_with('%');
  if (sign != std::string::npos && percent) {
    const std::string_view digits = std::string_view(text).substr(sign + 1, text.size() - sign - 2);
    if (const auto share = base::parse_number<double>(digits, 0, 100); share && *share > 0 && *share < 100)
      return {text.substr(0, sign), *share / 100};
  }
  throw UsageError(fmt::format("--slow {}: PART=PERCENT% is expected, as in link:PCI0=50%; between 0 and 100", text));
}

// An unknown part is a wrong command line.
TopoSystem changed(auto&& change) {
  try {
    return change();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidValue) throw;
    throw UsageError(base::bare_text(error));
  }
}

// Machines that have NVLinks, or no GPUs, stay as they are if there are others.
void add_nvswitches(const MachineOptions& options, std::vector<TopoSystem>& machines) {
  std::vector<std::string> refused;
  for (TopoSystem& one : machines) {
    try {
      one = topo::with_nvswitch(one, options.nvlinks, options.sm == 0 ? 80 : options.sm, {});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidValue) throw;
      refused.push_back(base::bare_text(error));
    }
  }
  if (refused.size() == machines.size() && !options.compared) throw UsageError(refused.front());
  for (const std::string& why : refused) fmt::print(stderr, "warning: {}\n", why);
}

}  // namespace

std::vector<TopoSystem> machines_asked(const MachineOptions& options) {
  if (options.sm > 0 && options.nvlinks == 0)
    throw UsageError(
        fmt::format("--sm {}: it is the compute capability of GPUs to which --nvlink adds links", options.sm));
  std::vector<TopoSystem> machines;
  for (const std::string& file : options.files) {
    store::TopologyFile found = store::read_topology_file(file, {});
    for (const std::string& warning : found.warnings) fmt::print(stderr, "warning: {}\n", warning);
    for (TopoSystem& one : found.machines) machines.push_back(std::move(one));
  }
  if (machines.empty()) machines.push_back(this_topology({}));
  if (options.nvlinks > 0) add_nvswitches(options, machines);
  for (const TopoSystem& one : machines) {
    for (const std::string& warning : topo::machine_warnings(one)) fmt::print(stderr, "warning: {}\n", warning);
  }
  return machines;
}

topo::FoldedCluster cluster_asked(const MachineOptions& options, const std::vector<TopoSystem>& machines, int copies,
                                  int max_copies) {
  // Copies of equal machines are folded as copies of one.
  const bool equal = max_copies == topo::kMaxCopies && topo::all_equal(machines);
  const std::vector<TopoSystem> kinds(machines.begin(), equal ? machines.begin() + 1 : machines.end());
  const std::size_t all_copies = static_cast<std::size_t>(copies) * (machines.size() / kinds.size());
  std::size_t devices = 0;
  for (const TopoSystem& one : kinds) devices += one.devices.size();
  if (devices * all_copies > kMaxAllRanks)
    throw UsageError(
        fmt::format("{} ranks: at most {} are possible; give a smaller --nodes", devices * all_copies, kMaxAllRanks));
  const std::size_t ranks = devices * std::min(all_copies, static_cast<std::size_t>(max_copies));
  if (ranks > kMaxRanks)
    throw UsageError(
        fmt::format("{} ranks in the plan: at most {} are possible; give a smaller --nodes or a file of fewer hosts",
                    ranks, kMaxRanks));
  topo::FoldedCluster cluster = topo::folded(kinds, static_cast<int>(all_copies), max_copies);
  TopoSystem& first = cluster.cluster.nodes.front();
  for (const std::string& part : options.failed) first = changed([&] { return topo::without_part(first, part, {}); });
  for (const std::string& text : options.slow) {
    const std::pair<std::string, double> slow = slow_part(text);
    first = changed([&] { return topo::with_slow_part(first, slow.first, slow.second, {}); });
  }
  return cluster;
}

}  // namespace slip::cli
