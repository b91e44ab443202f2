#include "cli/read_traces.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::cli {
namespace {

// "ranks 0 to 3", or "ranks 0, 2 of 4" where some are missing.
std::string ranks_text(const std::vector<TraceData>& traces) {
  std::vector<int> ranks;
  for (const TraceData& trace : traces) ranks.push_back(trace.process.rank);
  std::ranges::sort(ranks);
  const int all = traces.front().process.ranks;
  if (static_cast<int>(ranks.size()) == all) return fmt::format("ranks 0 to {}", all - 1);
  return fmt::format("ranks {} of {}", fmt::join(ranks, ", "), all);
}

}  // namespace

std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths) {
  std::vector<TraceData> traces;
  for (const std::string& path : paths) traces.push_back(read_trace(path, {}));
  std::vector<NamedTrace> result;
  if (are_ranks_of_one_job(traces)) {
    result.push_back({fmt::format("{} and {} more: {}", paths.front(), paths.size() - 1, ranks_text(traces)),
                      merge_traces(traces, {})});
    return result;
  }
  for (std::size_t i = 0; i < paths.size(); ++i) result.push_back({paths[i], std::move(traces[i])});
  return result;
}

std::string device_text(const TraceData& trace, std::uint32_t device) {
  const auto found = std::ranges::find(trace.devices, device, &TraceDevice::id);
  if (found == trace.devices.end()) return fmt::format("device {}", device);
  const auto of_rank = std::ranges::count(trace.devices, found->rank, &TraceDevice::rank);
  return of_rank == 1 ? fmt::format("rank {}", found->rank)
                      : fmt::format("rank {} device {}", found->rank, found->id_there);
}

}  // namespace slip::cli
