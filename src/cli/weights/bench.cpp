// `slip bench weights MODEL`: measures one model with all weights on the device, and with less and less memory
// for them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/weights/engine.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::cli {
namespace {

struct WeightsBenchOptions {
  EngineOptions engine;
  StepOptions steps;
  std::string json;
};

struct Case {
  std::string name;
  WeightsOptions options;
};

// Budget for a share of the weights, plus twice the largest weight need of any op.
std::vector<Case> cases_of(const Graph& graph, const WeightsPlan& resident) {
  std::vector<Case> cases;
  const std::uint64_t weights = graph.bytes_of(ValueRole::kWeight);
  for (const std::uint64_t percent : {75, 50, 25})
    cases.push_back(
        {fmt::format("{} % of them", percent), {.budget = resident.activation_bytes + weights / 100 * percent}});
  const std::uint64_t at_once = flow::largest_working_set(resident.units, flow::make_loads(resident.units)).bytes;
  cases.push_back({"two slots", {.ring = 2 * at_once, .stream_all = true}});
  return cases;
}

class Comparing {
 public:
  Comparing(const Engine& engine, StepOptions steps) : engine_(engine), steps_(steps) {}

  // Returns false if interrupted.
  bool add(const std::string& name, const WeightsPlan& plan) {
    steps_.what = name.c_str();
    const StepsSeen seen = run_steps(engine_, plan, steps_);
    if (seen.steps < steps_.steps) {
      stopped(seen, steps_);
      return false;
    }
    const Comparison& found = seen.comparison;
    const double achieved = seen.loaded_per_second(plan);
    if (plan.loads.empty()) resident_ = found.measured;
    if (outputs_.empty()) outputs_ = seen.outputs;
    const bool equal = outputs_ == seen.outputs;
    wrong_ |= !equal;
    table_.row({word(name), bytes(seen.peak), time(found.measured),
                resident_ > 0 ? times(static_cast<double>(found.measured) / static_cast<double>(resident_)) : none(),
                time(found.predicted), percent(100 * found.error()), plan.loads.empty() ? none() : rate(achieved),
                plan.loads.empty() ? none() : percent(100 * achieved / engine_.costs().load.bytes_per_second),
                word(equal ? "equal" : "WRONG")});
    return true;
  }
  void skip(const std::string& name, const std::string& why) { notes_.push_back(fmt::format("{}: {}", name, why)); }

  const Table& table() const { return table_; }
  const std::vector<std::string>& notes() const { return notes_; }  // rows that were left out, with the reason
  bool wrong() const { return wrong_; }

 private:
  const Engine& engine_;
  StepOptions steps_;
  Table table_{"",
               {"weights=case", "memory=peak_bytes", "a step=step_ps", "to resident=ratio", "predicted=predicted_ps",
                "off=error_percent", "loaded=bytes_per_s", "of the link=link_percent", "outputs"}};
  std::vector<std::string> notes_;
  std::vector<std::byte> outputs_;
  Picos resident_ = 0;
  bool wrong_ = false;
};

bool compresses(const WeightsPlan& plan) {
  return std::ranges::any_of(plan.units, [](const WeightGroup& group) { return group.compressed_bytes > 0; });
}

// A budget that is too small is skipped, and so is a plan that equals the one before; the reason is noted.
bool run_cases(const Engine& engine, Comparing& comparing) {
  const WeightsPlan resident = engine.resident_plan();
  if (resident.device_bytes() > engine.free_bytes()) {
    comparing.skip("resident", fmt::format("needs {}, and {} are free", base::format_bytes(resident.device_bytes()),
                                           base::format_bytes(engine.free_bytes())));
  } else if (!comparing.add("resident", resident)) {
    return false;
  }
  const auto add = [&](const Case& one) {
    try {
      const WeightsPlan plan = plan_weights(engine.graph(), engine.costs(), one.options, {});
      if (!one.options.compressed || compresses(plan)) return comparing.add(one.name, plan);
      comparing.skip(one.name, "the planner compresses nothing, because no step would become 1 % shorter");
    } catch (const Error& error) {
      if (error.code() != Code::kOutOfMemory) throw;
      comparing.skip(one.name, error.what());
    }
    return true;
  };
  const auto compressed_bytes = engine.compressed_bytes();
  for (Case& one : cases_of(engine.graph(), resident)) {
    if (!add(one)) return false;
    if (!compressed_bytes) continue;
    one.name += ", compressed";
    one.options.compressed = compressed_bytes;
    if (!add(one)) return false;
  }
  return true;
}

int bench_weights(const WeightsBenchOptions& wanted) {
  wanted.steps.check();
  require_runnable(wanted.engine, "bench");
  const Engine engine(wanted.engine);
  const Costs& costs = engine.costs();
  Comparing comparing(engine, wanted.steps);
  const bool complete = run_cases(engine, comparing);
  write_json(wanted.json, {{"device", wanted.engine.device},
                           {"weights_bytes", engine.graph().bytes_of(ValueRole::kWeight)},
                           {"link_bytes_per_s", costs.load.bytes_per_second},
                           {"kernel_slowdown", costs.kernel_slowdown},
                           {"load_slowdown", costs.load_slowdown},
                           {"rows", json_of(comparing.table())},
                           {"left_out", comparing.notes()}});
  std::string notes;
  for (const std::string& note : comparing.notes()) notes += paragraph(note, 2);
  fmt::print("{}: {} ops, {} of weights, on {}; the link gives {}, a kernel beside a load takes {:.2f}x\n\n{}{}",
             wanted.engine.model, engine.graph().ops().size(),
             base::format_bytes(engine.graph().bytes_of(ValueRole::kWeight)), wanted.engine.device,
             base::format_rate(costs.load.bytes_per_second), 1 + costs.kernel_slowdown, comparing.table().text(),
             notes);
  if (!complete) return kInterrupted;
  return comparing.wrong() ? kFailed : kSuccess;
}

}  // namespace

std::function<int()> add_weights_bench(CLI::App& bench) {
  auto wanted = std::make_shared<WeightsBenchOptions>();
  CLI::App* weights =
      bench.add_subcommand("weights", "All weights resident beside 75, 50 and 25 % of them, and two slots");
  weights->footer(
      "\nRuns the model each way and shows time, memory, the rate of loading and what was predicted. `two slots`: no\n"
      "weight stays, and the ring holds twice what any op needs at once. With --compress, or a folder of slip\n"
      "compress, each row comes a second time with compressed weights, where the planner uses them. Example:\n"
      "  slip bench weights model/ --device cuda:0 --compress");
  wanted->engine.add_model_to(*weights, true);
  weights->add_option("--steps", wanted->steps.steps, "Steps to run each way")->capture_default_str();
  weights->add_option("--seed", wanted->steps.seed, "Of the random inputs")->capture_default_str();
  add_output(*weights, "--json", wanted->json, "Write the table as data");
  return [wanted] { return bench_weights(*wanted); };
}

}  // namespace slip::cli
