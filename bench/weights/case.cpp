#include "case.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <random>
#include <stdexcept>

#include "raw_link.hpp"
#include "support/timing.hpp"

namespace slip::bench {

namespace {

// A table of values, read from places that depend on `key`.
void fill_normal(std::span<std::byte> into, std::uint64_t key) {
  static const std::vector<std::uint16_t> kTable = [] {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 0.02F);
    std::vector<std::uint16_t> table(std::size_t{1} << 22);
    for (std::uint16_t& word : table)
      word = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
    return table;
  }();
  std::mt19937_64 random(key);
  constexpr std::size_t kRun = 4096;
  for (std::size_t at = 0; at < into.size(); at += 2 * kRun) {
    const std::size_t bytes = std::min(2 * kRun, into.size() - at);
    std::memcpy(&into[at], &kTable[random() % (kTable.size() - kRun)], bytes);
  }
}

}  // namespace

StackWeights::StackWeights(const Device& device, const model::StackOptions& options, Values values) {
  const Graph graph = model::stack_graph(options);
  std::vector<std::pair<Value, std::uint64_t>> places;
  constexpr std::uint64_t kAlign = 4096;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role != ValueRole::kWeight) continue;
    places.emplace_back(Value{i}, bytes_);
    bytes_ += (graph.values()[i].bytes + kAlign - 1) / kAlign * kAlign;
  }
  memory_ = device.alloc(bytes_, MemoryKind::kPinned, "weights");
  const HostView<std::byte> view = memory_.host_write<std::byte>();
  for (const auto& [value, at] : places) {
    const std::span<std::byte> bytes = view.span().subspan(at, graph[value].bytes);
    if (values == Values::kNormal) fill_normal(bytes, value.index);
    else model::fill_stack_weight(graph, options, value, 0, bytes);
    by_name_.emplace_back(graph[value].name, bytes);
  }
  std::ranges::sort(by_name_, {}, [](const auto& one) { return one.first; });
}

WeightSource StackWeights::source() const {
  return WeightSource::memory(
      [this](const GraphValue& weight) -> std::span<const std::byte> {
        const auto at = std::ranges::lower_bound(by_name_, weight.name, {}, [](const auto& one) { return one.first; });
        if (at == by_name_.end() || at->first != weight.name) throw std::runtime_error("no weight " + weight.name);
        return at->second;
      },
      MemoryKind::kPinned);
}

RunningPlan::RunningPlan(const std::string& device, const Graph& graph, const WeightsPlan& plan,
                         const WeightSource& source)
    : graph_(graph),
      device_(Device::open(device, {.memory_limit = plan.device_bytes()})),
      runner_(device_, graph, plan, source) {
  const Value x = *graph.find("x");
  for (int turn = 0; turn < 2; ++turn) {  // inputs are double-buffered
    const auto bytes = runner_.input<std::byte>(x);
    const bool wide = graph[x].type == DataType::kF32;
    for (std::size_t i = 0; i + 4 <= bytes.size(); i += wide ? 4 : 2) {
      const float number = static_cast<float>((i * 7919) % 2001) / 1000.0F - 1.0F;
      const auto bits = std::bit_cast<std::uint32_t>(number);
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      if (wide) std::memcpy(&bytes[i], &bits, 4);
      else std::memcpy(&bytes[i], &upper, 2);
    }
    runner_.step();
  }
  static_cast<void>(output());
}

std::vector<std::byte> RunningPlan::output() {
  const auto bytes = runner_.output<std::byte>(*graph_.find("y"));
  return {bytes.begin(), bytes.end()};
}

double RunningPlan::step_ns(int steps) {
  const Value y = *graph_.find("y");
  runner_.step();
  static_cast<void>(runner_.output<std::byte>(y));  // the ring is full now, as in the steady state
  const Timer timer;
  for (int i = 0; i < steps; ++i) runner_.step();
  static_cast<void>(runner_.output<std::byte>(y));
  return timer.elapsed_ns() / steps;
}

std::string why_no_gpu_cases(const std::string& costs_file) {
  if (!has_gpu()) return "no GPU";
  if (costs_file.empty() || !std::ifstream(costs_file)) return "no costs: bench/weights/run.sh profiles first";
  return {};
}

WeightsOptions gpu_options(const Graph& graph, double share) {
  const std::uint64_t bytes = graph.bytes_of(ValueRole::kWeight);
  WeightsOptions options;
  if (share > 0) options.budget = static_cast<std::uint64_t>(share * static_cast<double>(bytes));
  else options.stream_all = true, options.ring = bytes / 16;
  return options;
}

}  // namespace slip::bench
