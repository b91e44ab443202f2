// Costs: the times of ops and loads, costs from the description of a sim device, and costs as JSON.
#include "slip/costs.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "backend/sim/arithmetic.hpp"
#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "flow/costs/measuring.hpp"
#include "store/file.hpp"

namespace slip {
namespace {

constexpr std::string_view kPrefix = "sim:";
constexpr double kMaxTime = 4e18;  // limit for computed times: less than half of the largest Picos

Picos rounded(double time) { return static_cast<Picos>(std::llround(std::clamp(time, 0.0, kMaxTime))); }

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

// The sample with the most similar flops; among equals, the one with the most similar bytes.
const CostSample* nearest(const std::vector<const CostSample*>& samples, const CostSample& wanted) {
  const auto nearer = [&](const CostSample* a, const CostSample* b) {
    const double first = distance(a->flops, wanted.flops), second = distance(b->flops, wanted.flops);
    return first != second ? first < second : distance(a->bytes, wanted.bytes) < distance(b->bytes, wanted.bytes);
  };
  return *std::min_element(samples.begin(), samples.end(), nearer);
}

Picos interpolated(const std::vector<const CostSample*>& samples, const CostSample& wanted) {
  // The size by which times are interpolated: flops, or bytes if the op has no flops.
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
    else known->time = std::max(known->time, sample.time);  // ops of one size may differ in Cost::width
  }
  return costs;
}

// Costs as JSON. The reader requires each field exactly once, but "decode" may be absent. It refuses numbers that no
// measurement can give.
namespace {

// The ranges that read_costs allows, and write_costs, too.
constexpr double kMaxRate = 1e18;
constexpr Picos kMaxPicos = Picos{1} << 62;
constexpr Picos kMinTime = 1;  // of a sample alone
constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

double slowdown_of(const CostSample& sample) {
  return sample.beside > 0 ? static_cast<double>(sample.beside) / static_cast<double>(sample.time) - 1 : 0;
}

LinkCost read_link(base::JsonFields fields) {
  LinkCost link;
  link.bytes_per_second = fields.real("bytes_per_second", 0, kMaxRate);
  link.latency = fields.integer("latency_ps", 0, kMaxPicos);
  fields.finish();
  return link;
}

CostSample read_sample(base::JsonFields& fields) {
  constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();
  CostSample sample;
  sample.kernel = fields.text("kernel");
  sample.weight_bytes = fields.number("weight_bytes", kAny);
  sample.flops = fields.number("flops", kAny);
  sample.bytes = fields.number("bytes", kAny);
  sample.time = fields.integer("time_ps", kMinTime, kMaxPicos);
  sample.beside = fields.integer("beside_ps", 0, kMaxPicos);
  fields.finish();
  if (slowdown_of(sample) > sim::kMaxSlowdown)
    fields.refuse(
        "beside_ps", sample.beside,
        fmt::format("at most {} times time_ps, which is {}, is expected", 1 + sim::kMaxSlowdown, sample.time));
  return sample;
}

std::string text_of(const Costs& costs) {
  const auto link = [](const LinkCost& cost) {
    return fmt::format("{{\"bytes_per_second\": {}, \"latency_ps\": {}}}", cost.bytes_per_second, cost.latency);
  };
  std::vector<std::string> samples;
  for (const CostSample& sample : costs.samples)
    samples.push_back(fmt::format(
        "\n    {{\"kernel\": {}, \"weight_bytes\": {}, \"flops\": {}, \"bytes\": {}, \"time_ps\": {}, \"beside_ps\": "
        "{}}}",
        base::json_string(sample.kernel), sample.weight_bytes, sample.flops, sample.bytes, sample.time, sample.beside));
  const bool decodes = costs.decode.bytes_per_second > 0;
  return fmt::format(
      "{{\n  \"device\": {},\n  \"load\": {},\n  \"unload\": {},\n  \"read\": {},{}\n  \"kernel_slowdown\": {},\n"
      "  \"load_slowdown\": {},\n  \"samples\": [{}\n  ]\n}}\n",
      base::json_string(costs.device), link(costs.load), link(costs.unload), link(costs.read),
      decodes ? fmt::format("\n  \"decode\": {},", link(costs.decode)) : "", costs.kernel_slowdown, costs.load_slowdown,
      fmt::join(samples, ","));
}

// Refuses costs that read_costs would refuse. Otherwise the error would appear only when the file is read.
void require_writable(const Costs& costs, Here here) {
  for (const LinkCost& link : {costs.load, costs.unload, costs.read, costs.decode}) {
    if (!(link.bytes_per_second >= 0 && link.bytes_per_second <= kMaxRate))
      base::fail(ErrorCode::kInvalidValue, here, "costs with a rate of {} bytes/s: 0 to {} is expected",
                 link.bytes_per_second, kMaxRate);
    if (link.latency < 0 || link.latency > kMaxPicos)
      base::fail(ErrorCode::kInvalidValue, here, "costs with a latency of {} ps: 0 to {} is expected", link.latency,
                 kMaxPicos);
  }
  const auto require_slowdown = [&](double slowdown) {
    if (!(slowdown >= 0 && slowdown <= sim::kMaxSlowdown))
      base::fail(ErrorCode::kInvalidValue, here, "costs with a slowdown of {}: at least 0 and at most {} is expected",
                 slowdown, sim::kMaxSlowdown);
  };
  require_slowdown(costs.kernel_slowdown);
  require_slowdown(costs.load_slowdown);
  const auto require_name = [&](std::string_view name) {
    if (!base::is_utf8(name))
      throw Error(ErrorCode::kInvalidValue, "costs with the name of a device or kernel that is not UTF-8", here);
    if (name.size() > base::JsonFields::kMaxTextBytes)
      base::fail(ErrorCode::kInvalidValue, here, "costs with the name of a device or kernel of {} bytes: at most {}",
                 name.size(), base::JsonFields::kMaxTextBytes);
  };
  require_name(costs.device);
  for (const CostSample& sample : costs.samples) {
    require_name(sample.kernel);
    if (sample.time < kMinTime || sample.time > kMaxPicos || sample.beside < 0 || sample.beside > kMaxPicos)
      base::fail(ErrorCode::kInvalidValue, here,
                 "costs with a sample of kernel '{}' of {} ps, and {} ps beside loads: {} to {}, and 0 to {}, are "
                 "expected",
                 sample.kernel, sample.time, sample.beside, kMinTime, kMaxPicos, kMaxPicos);
    if (slowdown_of(sample) > sim::kMaxSlowdown) require_slowdown(slowdown_of(sample));
  }
}

}  // namespace

Costs read_costs(const std::string& path, Here here) {
  const base::Json json = base::parse_json(store::read_text(path, kMaxBytes, "costs", here), path, kMaxBytes, here);
  base::JsonFields fields(json, path, here);
  Costs costs;
  costs.device = fields.text("device");
  costs.load = read_link(fields.object("load"));
  costs.unload = read_link(fields.object("unload"));
  costs.read = read_link(fields.object("read"));
  if (fields.has("decode")) costs.decode = read_link(fields.object("decode"));
  costs.kernel_slowdown = fields.real("kernel_slowdown", 0, sim::kMaxSlowdown);
  costs.load_slowdown = fields.real("load_slowdown", 0, sim::kMaxSlowdown);
  for (base::JsonFields& sample : fields.objects("samples")) costs.samples.push_back(read_sample(sample));
  fields.finish();
  return costs;
}

void write_costs(const Costs& costs, const std::string& path, Here here) {
  require_writable(costs, here);
  const std::string text = text_of(costs);
  if (text.size() > kMaxBytes)
    base::fail(ErrorCode::kInvalidValue, here, "costs of {} bytes as a file: at most {}", text.size(), kMaxBytes);
  base::write_file(path, text, here);
}

}  // namespace slip
