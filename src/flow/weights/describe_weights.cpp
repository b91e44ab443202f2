// describe(): a plan as human-readable text.
#include <fmt/format.h>

#include <algorithm>

#include "base/quantity_text.hpp"
#include "slip/weights.hpp"

namespace slip {
namespace {

double percent(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

std::string memory_line(const WeightsPlan& plan, std::uint64_t weights) {
  std::string text = fmt::format("device memory  {}: {} resident weights ({:.0f} % of {}), {} ring, {}{} activations",
                                 base::format_bytes(plan.device_bytes()), base::format_bytes(plan.resident_bytes),
                                 percent(plan.resident_bytes, weights), base::format_bytes(weights),
                                 base::format_bytes(plan.ring_bytes),
                                 plan.slot_bytes > 0 ? base::format_bytes(plan.slot_bytes) + " slots, " : "",
                                 base::format_bytes(plan.activation_bytes));
  if (plan.activation_bytes > plan.activation_bound)
    text += fmt::format(" ({:.1f} % above the maximum that is live at once)",
                        percent(plan.activation_bytes - plan.activation_bound, plan.activation_bound));
  return text + "\n";
}

// The groups that are compressed. Empty: there are none.
std::string compression_line(const WeightsPlan& plan, const Costs& costs) {
  std::uint64_t streamed = 0, resident = 0, bytes = 0, compressed = 0;
  for (const WeightGroup& group : plan.groups) {
    if (group.compressed_bytes == 0) continue;
    ++(group.resident ? resident : streamed);
    bytes += group.bytes;
    compressed += group.compressed_bytes;
  }
  if (bytes == 0) return "";
  return fmt::format(
      "compressed     {} of the streamed groups and {} of the resident ones: {} in {} ({:.2f}x), {} of "
      "decoding a step at {}\n",
      streamed, resident, base::format_bytes(bytes), base::format_bytes(compressed),
      static_cast<double>(bytes) / static_cast<double>(compressed), base::format_time(plan.decoding),
      base::format_rate(costs.decode.bytes_per_second));
}

// Says whether compute or loading limits the step, and how to shorten it.
std::string bottleneck(const WeightsPlan& plan, const Costs& costs) {
  if (plan.loads.empty()) return "all weights stay on the device: nothing is loaded in a step\n";
  // Decoding runs where the ops run, so the link works at the same time as both.
  const Picos work = plan.compute + plan.decoding;
  const std::string of_link =
      plan.loading == 0 ? "nothing over the link"
                        : fmt::format("{} a step at {} = {}", base::format_bytes(plan.link_bytes()),
                                      base::format_rate(costs.load.bytes_per_second), base::format_time(plan.loading));
  const std::string of_decoding =
      plan.decoding > 0 ? fmt::format(" and {} of decoding", base::format_time(plan.decoding)) : "";
  const std::string amounts =
      fmt::format("{} against {} of compute{}", of_link, base::format_time(plan.compute), of_decoding);
  if (plan.loading <= work) {
    const Picos extra = plan.step - plan.compute;
    if (extra * 1000 <= plan.compute) return fmt::format("compute-bound: {}: all loads are hidden\n", amounts);
    const char* const why =
        2 * plan.decoding > extra ? "most of it is decoding" : "since loads slow kernels or come late";
    return fmt::format("compute-bound: {}: {} more than resident, {}\n", amounts, base::format_time(extra), why);
  }
  return fmt::format(
      "load-bound: {}; hidden from about {:.3g} times the work per step on (more tokens or a larger "
      "batch), or with {} more of the weights resident\n",
      amounts,
      static_cast<double>(plan.loading - plan.decoding) / static_cast<double>(std::max<Picos>(plan.compute, 1)),
      base::format_bytes(
          static_cast<std::uint64_t>(static_cast<double>(plan.streamed_bytes) *
                                     (1 - static_cast<double>(work) / static_cast<double>(plan.loading)))));
}

}  // namespace

std::string describe(const WeightsPlan& plan, const Graph& graph, const Costs& costs) {
  const std::uint64_t weights = graph.bytes_of(ValueRole::kWeight);
  const auto resident = std::ranges::count_if(plan.groups, &WeightGroup::in_place);
  const auto from_disk =
      std::ranges::count_if(plan.groups, [](const WeightGroup& group) { return !group.resident && group.from_disk; });
  std::string text = fmt::format("graph          {} ops, {} of weights in {} groups\n", graph.ops().size(),
                                 base::format_bytes(weights), plan.groups.size());
  text += memory_line(plan, weights);
  if (plan.budget) text += fmt::format("budget         {}\n", base::format_bytes(*plan.budget));
  text += fmt::format("weight groups  {} stay, {} pass through the ring in {} loads a step", resident,
                      static_cast<std::int64_t>(plan.groups.size()) - resident, plan.loads.size());
  text += from_disk > 0 ? fmt::format(", {} of them read from disk\n", from_disk) : "\n";
  text += compression_line(plan, costs);
  text += fmt::format("step           {} predicted, {:.3f}x of all resident ({})\n", base::format_time(plan.step),
                      static_cast<double>(plan.step) / static_cast<double>(std::max<Picos>(plan.compute, 1)),
                      base::format_time(plan.compute));
  if (!plan.loads.empty())
    text +=
        fmt::format("bound          {}: no choice of resident weights beside this ring takes less; {:.2f} % away\n",
                    base::format_time(plan.bound),
                    100 * (static_cast<double>(plan.step) / static_cast<double>(std::max<Picos>(plan.bound, 1)) - 1));
  return text + "               " + bottleneck(plan, costs);
}

}  // namespace slip
