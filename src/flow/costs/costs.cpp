#include "slip/costs.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "backend/sim/arithmetic.hpp"
#include "base/fail.hpp"
#include "flow/costs/measuring.hpp"

namespace slip {
namespace {

constexpr std::string_view kPrefix = "sim:";
constexpr double kMax = 4e18;  // limit for computed times: half of the range of Picos

Picos rounded(double time) { return static_cast<Picos>(std::llround(std::clamp(time, 0.0, kMax))); }

// Returns 0 if either amount is unknown: scaled() takes the maximum of two ratios, so the other ratio decides.
double ratio(std::uint64_t of, std::uint64_t to) {
  return of == 0 || to == 0 ? 0.0 : static_cast<double>(of) / static_cast<double>(to);
}

// The time of `wanted` at the rates of `sample`: the slower of computing and moving bytes decides.
Picos scaled(const CostSample& sample, const CostSample& wanted) {
  const double factor = std::max(ratio(wanted.flops, sample.flops), ratio(wanted.bytes, sample.bytes));
  return factor > 0 ? std::max<Picos>(rounded(static_cast<double>(sample.time) * factor), 1) : sample.time;
}

// The distance of two amounts on a logarithmic scale.
double distance(std::uint64_t a, std::uint64_t b) {
  return std::abs(std::log(static_cast<double>(a) + 1) - std::log(static_cast<double>(b) + 1));
}

const CostSample* nearest(const std::vector<const CostSample*>& samples, const CostSample& wanted) {
  const auto nearer = [&](const CostSample* a, const CostSample* b) {
    const double first = distance(a->flops, wanted.flops), second = distance(b->flops, wanted.flops);
    return first != second ? first < second : distance(a->bytes, wanted.bytes) < distance(b->bytes, wanted.bytes);
  };
  return *std::min_element(samples.begin(), samples.end(), nearer);
}

Picos interpolated(const std::vector<const CostSample*>& samples, const CostSample& wanted) {
  // The size by which samples of one kernel are interpolated: flops, or bytes if the op has no flops.
  const auto at = [&](const CostSample& sample) { return wanted.flops > 0 ? sample.flops : sample.bytes; };
  const CostSample *below = nullptr, *above = nullptr;
  for (const CostSample* sample : samples) {
    if (at(*sample) <= at(wanted) && (!below || at(*sample) > at(*below))) below = sample;
    if (at(*sample) >= at(wanted) && (!above || at(*sample) < at(*above))) above = sample;
  }
  if (!below || !above || at(*below) == at(*above)) return scaled(*nearest(samples, wanted), wanted);
  const auto past_below = static_cast<double>(at(wanted) - at(*below));
  const auto low = static_cast<double>(below->time), high = static_cast<double>(above->time);
  return rounded(low + (high - low) * (past_below / static_cast<double>(at(*above) - at(*below))));
}

[[noreturn]] void refuse_unknown(const Costs& costs, const GraphOp& op) {
  std::set<std::string> known;
  for (const CostSample& sample : costs.samples) known.insert(sample.kernel);
  base::fail(ErrorCode::kInvalidValue, {},
             "op '{}': the costs of '{}' have no sample of its kernel '{}', only of {}; measure the graph "
             "again with measure_costs",
             op.name, costs.device, op.kernel->name.text(),
             known.empty() ? std::string("none") : fmt::format("{}", fmt::join(known, ", ")));
}

}  // namespace

Picos LinkCost::time_for(std::uint64_t bytes) const {
  if (!(bytes_per_second > 0))
    base::fail(ErrorCode::kInvalidValue, {},
               "no time for {} bytes at {} bytes/s: the rate of this link is not known; measure it with "
               "measure_link",
               bytes, bytes_per_second);
  return latency + rounded(static_cast<double>(bytes) / bytes_per_second * flow::kPicosPerSecond);
}

Picos Costs::time_of(const Graph& graph, const GraphOp& op) const {
  const CostSample wanted = flow::sample_of(graph, op, 0);
  std::vector<const CostSample*> of_kernel, of_weight;
  for (const CostSample& sample : samples) {
    if (sample.kernel != wanted.kernel) continue;
    if (flow::same_size(sample, wanted)) return sample.time;
    of_kernel.push_back(&sample);
    if (sample.weight_bytes == wanted.weight_bytes) of_weight.push_back(&sample);
  }
  if (of_kernel.empty()) refuse_unknown(*this, op);
  return of_weight.empty() ? scaled(*nearest(of_kernel, wanted), wanted) : interpolated(of_weight, wanted);
}

double Costs::slowdown_of(const Graph& graph) const {
  const auto measured = [](const CostSample& sample) { return sample.beside > 0; };
  if (std::none_of(samples.begin(), samples.end(), measured)) return kernel_slowdown;
  Costs slowed = *this;
  for (CostSample& sample : slowed.samples)
    sample.time = measured(sample) ? sample.beside : rounded(static_cast<double>(sample.time) * (1 + kernel_slowdown));
  double alone = 0, beside = 0;
  for (const GraphOp& op : graph.ops()) {
    alone += static_cast<double>(time_of(graph, op));
    beside += static_cast<double>(slowed.time_of(graph, op));
  }
  return alone > 0 ? std::max(0.0, beside / alone - 1) : 0;
}

// Uses the arithmetic of the sim device, so that a simulated run takes exactly the modelled time.
Costs model_costs(const Graph& graph, std::string_view device, Here here) {
  if (!device.starts_with(kPrefix))
    base::fail(ErrorCode::kInvalidValue, here,
               "'{}' has no description to model costs from: name a sim device such as sim:h200, or "
               "measure with measure_costs",
               device);
  const auto share = [](std::uint32_t ppm) { return static_cast<double>(ppm) / sim::kPpm; };
  const std::string_view rest = device.substr(kPrefix.size());
  const sim::Description description = sim::load_description(rest);
  const auto link = [&](std::uint64_t rate) { return LinkCost{static_cast<double>(rate), description.copies.latency}; };
  Costs costs;
  costs.device = sim::is_description_text(rest) ? fmt::format("{}{}", kPrefix, description.name) : std::string(device);
  costs.load = link(description.copies.in);
  costs.unload = link(description.copies.out);
  // A GPU decodes at 3/8 of its memory bandwidth (H200: 1.8 of 4.8 TB/s): it reads 0.7 bytes for each byte it writes.
  costs.decode = {0.375 * static_cast<double>(description.compute.bandwidth), 0};
  costs.kernel_slowdown = share(description.compute.copy_slowdown_ppm);
  costs.load_slowdown = share(description.copies.kernel_slowdown_ppm);
  for (const GraphOp& op : graph.ops()) {
    const Picos time = sim::kernel_time(description.compute, op.cost, op.cost.bytes);
    CostSample sample = flow::sample_of(graph, op, std::max<Picos>(time, 1));
    const auto known = std::find_if(costs.samples.begin(), costs.samples.end(),
                                    [&](const CostSample& other) { return flow::same_size(sample, other); });
    if (known == costs.samples.end()) costs.samples.push_back(std::move(sample));
    else known->time = std::max(known->time, sample.time);  // ops of one size can differ in width: keep the longer time
  }
  return costs;
}

}  // namespace slip
