// Runs a model in less device memory than its weights take. It builds a graph, plans, proves, predicts, runs, and
// compares the run with the prediction. The output is the same, to the bit, as with all weights on the device.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "slip/slip.hpp"

namespace {

constexpr std::uint64_t kTokens = 32, kSize = 512;
constexpr int kLayers = 8, kSteps = 4;

// Writes bytes of a weight, from byte `offset` on. Most programs use slip::WeightSource::files("model/") instead, which
// reads safetensors files.
void fill(const slip::GraphValue& weight, std::uint64_t offset, std::span<std::byte> into) {
  auto* numbers = reinterpret_cast<float*>(into.data());
  for (std::size_t i = 0; i < into.size() / sizeof(float); ++i)
    numbers[i] = static_cast<float>((i + offset / sizeof(float) + weight.name.size()) % 17) / 100.0F - 0.08F;
}

std::vector<float> run(const slip::Graph& graph, const slip::WeightsPlan& plan, slip::Trace* trace,
                       std::uint64_t* compute_stream) {
  const auto device = slip::Device::open("cpu", {.memory_limit = plan.device_bytes()});  // a larger allocation fails
  slip::Runner runner(device, graph, plan, slip::WeightSource::callback(fill));
  const slip::Value x = *graph.find("x"), y = *graph.find("act 7");
  for (int step = 0; step < kSteps; ++step) {
    std::ranges::fill(runner.input<float>(x), 0.5F + static_cast<float>(step));
    runner.step();  // returns at once
  }
  const auto output = runner.output<float>(y);  // waits for the last step
  runner.sync();
  if (trace) trace->stop();
  if (compute_stream) *compute_stream = runner.compute_stream();
  return {output.begin(), output.end()};
}

}  // namespace

int main() {
  slip::Graph graph;
  slip::Value x = graph.input("x", slip::DataType::kF32, {kTokens, kSize});
  for (int i = 0; i < kLayers; ++i) {
    const std::string number = std::to_string(i);
    const slip::Value weight = graph.weight("w" + number, slip::DataType::kF32, {kSize, kSize});
    x = graph.gelu("act " + number, graph.linear("layer " + number, x, weight));
  }
  graph.output(x);

  const slip::Costs costs = slip::measure_costs(graph, slip::Device::open("cpu"));
  const slip::WeightsPlan all = slip::plan_weights(graph, costs);
  const slip::WeightsPlan plan = slip::plan_weights(graph, costs, {.budget = all.device_bytes() / 2});
  std::printf("%s", slip::describe(plan, graph, costs).c_str());

  // With the device and the source, so that the loads are proven as a runner on this device issues them.
  const slip::WeightsProof proof =
      slip::verify_weights(plan, graph, slip::Device::open("cpu"), slip::WeightSource::callback(fill));
  const slip::Prediction prediction = slip::predict_weights(plan, graph, costs);
  std::printf("proof: %s\n", slip::verdict_name(proof.verdict));

  const std::vector<float> expected = run(graph, all, nullptr, nullptr);
  slip::Trace trace;
  std::uint64_t compute_stream = 0;
  const std::vector<float> output = run(graph, plan, &trace, &compute_stream);
  std::printf("%s", slip::compare_weights(graph, prediction, trace.data(), compute_stream).text(2).c_str());
  std::printf("outputs: %s\n", output == expected ? "equal" : "WRONG");
  return proof.proven() && output == expected && plan.device_bytes() <= all.device_bytes() / 2 ? 0 : 1;
}
