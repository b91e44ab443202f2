// Costs by a description of the sim device, with the sim's own arithmetic, so that a simulated run takes just as long.
#include <fmt/format.h>

#include <algorithm>

#include "backend/sim/kernel_time.hpp"
#include "flow/weights/op_size.hpp"

namespace slip {
namespace {

constexpr std::string_view kPrefix = "sim:";

double share(std::uint32_t ppm) { return static_cast<double>(ppm) / sim::kPpm; }

}  // namespace

Costs model_costs(const Graph& graph, std::string_view device, Here here) {
  if (!device.starts_with(kPrefix))
    throw Error(Code::kInvalidValue,
                fmt::format("'{}' has no description to model costs from: name a sim device, say sim:h200, or measure "
                            "with measure_costs",
                            device),
                here);
  const std::string_view rest = device.substr(kPrefix.size());
  const sim::Description description = sim::load_description(rest);
  const auto link = [&](std::uint64_t rate) { return LinkCost{static_cast<double>(rate), description.copies.latency}; };
  Costs costs;
  costs.device = sim::is_description_text(rest) ? fmt::format("{}{}", kPrefix, description.name) : std::string(device);
  costs.load = link(description.copies.in);
  costs.unload = link(description.copies.out);
  costs.kernel_slowdown = share(description.compute.copy_slowdown_ppm);
  costs.load_slowdown = share(description.copies.kernel_slowdown_ppm);
  for (const GraphOp& op : graph.ops()) {
    const Picos time = sim::kernel_time(description.compute, op.cost, op.cost.bytes);
    CostSample sample = sample_of(graph, op, std::max<Picos>(time, 1));
    const auto known = std::find_if(costs.samples.begin(), costs.samples.end(),
                                    [&](const CostSample& other) { return same_size(sample, other); });
    if (known == costs.samples.end()) costs.samples.push_back(std::move(sample));
    else known->time = std::max(known->time, sample.time);  // they differ in width: the plan must hold for both
  }
  return costs;
}

}  // namespace slip
