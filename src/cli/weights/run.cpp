// `slip run MODEL`: runs a model within a budget and lays the run over its prediction.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>

#include "cli/commands.hpp"
#include "cli/json.hpp"
#include "cli/weights/engine.hpp"

namespace slip::cli {
namespace {

constexpr int kInterrupted = 130;

struct Asked {
  EngineOptions engine;
  int steps = 8;
  std::uint64_t seed = 1;
  std::string trace, html;
  bool check = false, json = false;
};

std::atomic<bool> g_stop{false};
void stop_soon(int) { g_stop.store(true, std::memory_order_relaxed); }

// Ctrl-C ends the loop after the step that runs; a second one ends the program as ever.
class StopOnInterrupt {
 public:
  StopOnInterrupt() {
    struct sigaction action {};
    action.sa_handler = stop_soon;
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGINT, &action, &before_);
  }
  ~StopOnInterrupt() { sigaction(SIGINT, &before_, nullptr); }
  static bool asked() { return g_stop.load(std::memory_order_relaxed); }

 private:
  struct sigaction before_ {};
};

struct Outcome {
  Comparison comparison;
  std::uint64_t peak = 0;
  int steps = 0;
  std::vector<std::byte> outputs;  // of the last step
  TraceData trace;
};

// The same inputs for every run of a seed and step; small numbers of the value's type.
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

void show_progress(const char* what, int step, int steps) {
  if (::isatty(STDERR_FILENO) != 0)
    fmt::print(stderr, "\r{}: step {} of {}{}", what, step, steps, step == steps ? "\n" : "");
}

Outcome run_plan(const Engine& engine, const WeightsPlan& plan, const Asked& asked, const char* what) {
  const Prediction prediction = predict_weights(plan, engine.graph(), engine.costs(), 4, {});
  const Device device = engine.open(plan);
  Runner runner(device, engine.graph(), plan, engine.source(), {});
  Outcome outcome;
  Trace trace;
  const StopOnInterrupt interrupt;
  for (; outcome.steps < asked.steps && !StopOnInterrupt::asked(); ++outcome.steps) {
    for (std::uint32_t i = 0; i < engine.graph().values().size(); ++i) {
      const GraphValue& value = engine.graph().values()[i];
      if (value.role != ValueRole::kInput) continue;
      fill_input(value, runner.input<std::byte>({i}, {}), asked.seed + static_cast<std::uint64_t>(outcome.steps));
    }
    runner.step({});
    show_progress(what, outcome.steps + 1, asked.steps);
  }
  if (outcome.steps > 0) {
    for (std::uint32_t i = 0; i < engine.graph().values().size(); ++i) {
      if (!engine.graph().values()[i].output) continue;
      const std::span<const std::byte> bytes = runner.output<std::byte>({i}, {});
      outcome.outputs.insert(outcome.outputs.end(), bytes.begin(), bytes.end());
    }
  }
  runner.sync({});
  trace.stop();
  outcome.peak = device.memory().peak;
  outcome.trace = trace.data();
  outcome.comparison = compare_weights(engine.graph(), prediction, outcome.trace, runner.compute_stream());
  return outcome;
}

void add_row(Table& table, const char* what, const WeightsPlan& plan, const Outcome& outcome, const Costs& costs,
             Cell outputs) {
  const double seconds = static_cast<double>(outcome.comparison.measured) * 1e-12;
  const double achieved = seconds > 0 ? static_cast<double>(plan.streamed_bytes) / seconds : 0;
  table.row({word(what), time(outcome.comparison.measured), time(outcome.comparison.predicted),
             percent(100 * outcome.comparison.error()), time(outcome.comparison.measured_idle), bytes(outcome.peak),
             plan.loads.empty() ? none() : rate(achieved),
             plan.loads.empty() ? none() : percent(100 * achieved / costs.load.bytes_per_second), std::move(outputs)});
}

Table make_table() {
  return {"",
          {{"weights", "case"},
           {"a step", "step_ps"},
           {"predicted", "predicted_ps"},
           {"off", "error_percent"},
           {"compute idle", "idle_ps"},
           {"peak memory", "peak_bytes"},
           {"loaded", "bytes_per_s"},
           {"of the link", "link_percent"},
           {"outputs", "outputs"}}};
}

int run_model(const Asked& asked) {
  if (asked.steps < 2) throw UsageError(fmt::format("--steps {} shows no steady state: take 2 or more", asked.steps));
  const Engine engine(asked.engine);
  if (!engine.has_weights())
    throw UsageError(
        fmt::format("'{}' is a graph without weights: slip run needs a folder with both", asked.engine.model));
  if (engine.simulated())
    throw UsageError(
        fmt::format("{} is simulated: slip plan predicts on it, slip run needs cpu or cuda:0", asked.engine.device));
  const WeightsPlan plan =
      asked.engine.plan.empty() ? engine.plan() : read_weights_plan(engine.graph(), asked.engine.plan, {});
  const WeightsProof proof = verify_weights(plan, engine.graph(), {});
  if (!proof.proven())
    throw Error(Code::kInvalidValue, "the plan cannot be proven, so it is not run:\n" + proof.text, {});
  Table table = make_table();
  std::optional<Outcome> resident;
  if (asked.check) {
    const WeightsPlan all = engine.resident_plan();
    resident = run_plan(engine, all, asked, "resident");
    add_row(table, "all resident", all, *resident, engine.costs(), word("-"));
  }
  const Outcome outcome = run_plan(engine, plan, asked, "run");
  const bool equal = !resident || resident->outputs == outcome.outputs;
  const bool complete = !StopOnInterrupt::asked();
  add_row(table, plan.loads.empty() ? "all resident" : "as planned", plan, outcome, engine.costs(),
          !resident || !complete ? none() : word(equal ? "equal to the bit" : "WRONG"));
  if (asked.json) {
    fmt::print("{}\n", json_of(table).dump(2));
  } else {
    fmt::print("{}proof          {}: {} ops and {} waits of {} steps\n\n",
               describe(plan, engine.graph(), engine.costs()), verdict_name(proof.verdict), proof.ops, proof.waits,
               proof.steps);
    fmt::print("{}\nlargest differences of the run from its prediction:\n{}", table.text(), outcome.comparison.text());
  }
  if (!asked.trace.empty()) write_trace(outcome.trace, asked.trace, {});
  if (!asked.html.empty()) {
    const Prediction prediction = predict_weights(plan, engine.graph(), engine.costs(), 4, {});
    write_html(outcome.trace, asked.html, asked.engine.model, &prediction.trace);
  }
  if (!complete) {
    fmt::print("stopped after {} of {} steps\n", outcome.steps, asked.steps);
    return kInterrupted;
  }
  return equal ? kSuccess : kFailed;
}

}  // namespace

std::function<int()> add_run(CLI::App& app) {
  auto asked = std::make_shared<Asked>();
  CLI::App* run = app.add_subcommand("run", "Run a model within a budget of device memory");
  run->footer(
      "\nPlans, proves, predicts and runs; shows times, memory and how far the prediction was off. Examples:\n"
      "  slip model stack --blocks 8 -o model/\n"
      "  slip run model/ --budget 120MiB --check --html run.html");
  asked->engine.add_to(*run);
  run->add_option("--plan", asked->engine.plan, "A plan that slip plan -o wrote, in place of planning now");
  run->add_option("--steps", asked->steps, "Steps to run")->capture_default_str();
  run->add_option("--seed", asked->seed, "Of the random inputs")->capture_default_str();
  run->add_flag("--check", asked->check, "Also run with all weights resident, and compare the outputs bit by bit");
  run->add_option("--trace", asked->trace, "Write the run as a trace");
  run->add_option("--html", asked->html, "Write the timeline as a page, the prediction under the run");
  run->add_flag("--json", asked->json, "Print the table as JSON");
  return [asked] { return run_model(*asked); };
}

}  // namespace slip::cli
