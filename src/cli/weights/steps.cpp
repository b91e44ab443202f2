#include "cli/weights/steps.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <random>

#include "cli/commands.hpp"
#include "flow/weights/step.hpp"
#include "store/file.hpp"

namespace slip::cli {
namespace {

std::atomic<bool> g_stop{false};
// Relaxed: no other data is published through the flag.
void stop_soon(int) { g_stop.store(true, std::memory_order_relaxed); }

class StopOnInterrupt {
 public:
  StopOnInterrupt() {
    struct sigaction action {};
    action.sa_handler = stop_soon;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~StopOnInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;
  static bool wanted() { return g_stop.load(std::memory_order_relaxed); }

 private:
  struct sigaction before_ {};
};

// Fills the value with small numbers of its type.
void fill_input(const GraphValue& value, std::span<std::byte> bytes, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::size_t i = 0; i + bytes_of(value.type) <= bytes.size(); i += bytes_of(value.type)) {
    const float number = static_cast<float>(random() % 2001) / 1000.0F - 1.0F;
    const auto bits = std::bit_cast<std::uint32_t>(number);
    if (value.type == DataType::kF32) {
      std::memcpy(&bytes[i], &bits, 4);
    } else if (value.type == DataType::kBF16) {
      const auto upper = static_cast<std::uint16_t>(bits >> 16);
      std::memcpy(&bytes[i], &upper, 2);
    } else {
      bytes[i] = static_cast<std::byte>(random() % 100);
    }
  }
}

void fill_inputs(const Graph& graph, Runner& runner, std::uint64_t seed) {
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role == ValueRole::kInput)
      fill_input(graph.values()[i], runner.input<std::byte>({i}, {}), seed);
  }
}

std::vector<std::byte> outputs_of(const Graph& graph, Runner& runner) {
  std::vector<std::byte> outputs;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (!graph.values()[i].output) continue;
    const std::span<const std::byte> bytes = runner.output<std::byte>({i}, {});
    outputs.insert(outputs.end(), bytes.begin(), bytes.end());
  }
  return outputs;
}

void show_progress(const StepOptions& options, int step) {
  if (::isatty(STDERR_FILENO) != 0)
    fmt::print(stderr, "\r{}: step {} of {}{}", options.what, step, options.steps, step == options.steps ? "\n" : "");
}

}  // namespace

void StepOptions::check() const {
  if (steps < 2) throw UsageError(fmt::format("--steps {} shows no steady state: take 2 or more", steps));
}

double StepsSeen::loaded_per_second(const WeightsPlan& plan) const {
  const double seconds = static_cast<double>(comparison.measured) * 1e-12;
  return seconds > 0 ? static_cast<double>(plan.streamed_bytes) / seconds : 0;
}

Cover loads_covered(const TraceData& trace, std::uint64_t compute_stream, std::size_t ops) {
  const std::vector<TraceSpan> kernels = kernel_spans(trace, compute_stream);
  if (ops == 0 || kernels.size() <= ops) return {};
  const Picos from = kernels[ops - 1].ended, to = kernels.back().ended;
  const auto load = [&](const TraceSpan& span) {
    return span.name.starts_with("load ") && span.started >= from && span.ended <= to;
  };
  return cover(trace.spans(), load,
               [&](const TraceSpan& span) { return span.stream == compute_stream && span.kind == OpKind::kKernel; });
}

StepsSeen run_steps(const Engine& engine, const WeightsPlan& plan, const StepOptions& options) {
  StepsSeen seen;
  // Predicts as many steps as run, so that the page shows a predicted step below each measured one. Later steps are all
  // alike, so there is a limit.
  constexpr int kMaxPredicted = 64;
  seen.prediction =
      predict_weights(plan, engine.graph(), engine.costs(), std::clamp(options.steps, 4, kMaxPredicted), {});
  const Device device = engine.open(plan);
  Runner runner(device, engine.graph(), plan, engine.source(), {});
  Trace trace;
  const StopOnInterrupt interrupt;
  for (; seen.steps < options.steps && !StopOnInterrupt::wanted(); ++seen.steps) {
    fill_inputs(engine.graph(), runner, options.seed + static_cast<std::uint64_t>(seen.steps));
    runner.step({});
    show_progress(options, seen.steps + 1);
  }
  if (seen.steps > 0) seen.outputs = outputs_of(engine.graph(), runner);
  runner.sync({});
  trace.stop();
  seen.peak = device.memory().peak;
  seen.trace = trace.data();
  seen.figures = figures(seen.trace.spans());
  seen.comparison = compare_weights(engine.graph(), seen.prediction, seen.trace, runner.compute_stream());
  return seen;
}

void require_runnable(const EngineOptions& options, const char* command) {
  if (options.device.starts_with("sim:"))
    throw UsageError(
        fmt::format("{} is simulated: slip plan predicts on it, slip {} needs cpu or cuda:0", options.device, command));
  if (is_folder(options.model)) return;
  static_cast<void>(File::open(options.model, {}));  // throws if the file does not exist
  throw UsageError(fmt::format("'{}' is {}: slip {} needs a folder with both", options.model,
                               is_weights_file(options.model) ? "weights without a graph" : "a graph without weights",
                               command));
}

int stopped(const StepsSeen& seen, const StepOptions& options) {
  fmt::print(stderr, "{}stopped after {} of {} steps ({})\n", ::isatty(STDERR_FILENO) != 0 ? "\n" : "", seen.steps,
             options.steps, options.what);
  return kInterrupted;
}

}  // namespace slip::cli
