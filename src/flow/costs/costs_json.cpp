// Reads and writes Costs as JSON. The reader requires every field exactly once, and refuses numbers that no measurement
// can give.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "slip/costs.hpp"
#include "store/file.hpp"

namespace slip {
namespace {

constexpr Picos kMaxPicos = Picos{1} << 62;
constexpr std::size_t kMaxBytes = std::size_t{256} << 20;

double slowdown_of(const CostSample& sample) {
  return sample.beside > 0 ? static_cast<double>(sample.beside) / static_cast<double>(sample.time) - 1 : 0;
}

LinkCost read_link(base::JsonFields fields) {
  LinkCost link;
  link.bytes_per_second = fields.real("bytes_per_second", 0, 1e18);
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
  sample.time = fields.integer("time_ps", 1, kMaxPicos);
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
  for (const double value : {costs.load.bytes_per_second, costs.unload.bytes_per_second, costs.read.bytes_per_second,
                             costs.decode.bytes_per_second, costs.kernel_slowdown, costs.load_slowdown}) {
    if (!std::isfinite(value) || value < 0)
      base::fail(ErrorCode::kInvalidValue, here, "costs with a rate or slowdown of {}", value);
  }
  double slowdown = std::max(costs.kernel_slowdown, costs.load_slowdown);
  for (const CostSample& sample : costs.samples) slowdown = std::max(slowdown, slowdown_of(sample));
  if (!(slowdown <= sim::kMaxSlowdown))
    base::fail(ErrorCode::kInvalidValue, here, "costs with a slowdown of {}: at most {} is expected", slowdown,
               sim::kMaxSlowdown);
  bool texts = base::is_utf8(costs.device);
  for (const CostSample& sample : costs.samples) texts = texts && base::is_utf8(sample.kernel);
  if (!texts)
    throw Error(ErrorCode::kInvalidValue, "costs with the name of a device or kernel that is not UTF-8", here);
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
  base::write_file(path, text_of(costs), here);
}

}  // namespace slip
