// `slip bench weights MODEL`: measures one model with all weights on the device, and then with less memory for them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/weights/workload.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::cli {
namespace {

struct WeightsBenchOptions {
  WorkloadOptions workload;
  StepOptions steps;
  std::string json;
};

struct Case {
  std::string name;
  WeightsOptions options;
};

// Budgets that have room for a share of the weights, and a ring with twice the bytes that any op needs at once.
std::vector<Case> cases_of(const Graph& graph, const WeightsPlan& resident) {
  std::vector<Case> cases;
  const std::uint64_t weights = graph.bytes_of(ValueRole::kWeight);
  for (const std::uint64_t percent : {75, 50, 25})
    cases.push_back(
        {fmt::format("{} % of them", percent), {.budget = resident.activation_bytes + weights / 100 * percent}});
  const std::uint64_t at_once = flow::largest_working_set(resident.groups, flow::make_loads(resident.groups)).bytes;
  cases.push_back({"two slots", {.ring = 2 * at_once, .stream_all = true}});
  return cases;
}

class CaseTable {
 public:
  CaseTable(const Workload& workload, StepOptions steps) : workload_(workload), steps_(steps) {}

  // Runs the plan and adds its row. Returns false if interrupted.
  bool add(const std::string& name, const WeightsPlan& plan) {
    steps_.label = name.c_str();
    const StepsResult result = run_steps(workload_, plan, steps_);
    if (result.steps < steps_.steps) {
      stopped(result, steps_);
      return false;
    }
    const Comparison& found = result.comparison;
    const double achieved = result.loaded_per_second(plan);
    if (plan.loads.empty()) resident_ = found.measured;
    if (outputs_.empty()) outputs_ = result.outputs;
    const bool equal = outputs_ == result.outputs;
    wrong_ |= !equal;
    table_.row({word(name), bytes(result.peak), time(found.measured),
                resident_ > 0 ? times(static_cast<double>(found.measured) / static_cast<double>(resident_)) : none(),
                time(found.predicted), percent(100 * found.error()), plan.loads.empty() ? none() : rate(achieved),
                plan.loads.empty() ? none() : percent(100 * achieved / workload_.costs().load.bytes_per_second),
                word(equal ? "equal" : "WRONG")});
    return true;
  }
  void skip(const std::string& name, const std::string& why) { notes_.push_back(fmt::format("{}: {}", name, why)); }

  const Table& table() const { return table_; }
  const std::vector<std::string>& notes() const { return notes_; }  // rows that were left out, with the reason
  bool wrong() const { return wrong_; }

 private:
  const Workload& workload_;
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
  return std::ranges::any_of(plan.groups, [](const WeightGroup& group) { return group.compressed_bytes > 0; });
}

// Skips a budget that is too small, and a plan that equals the one before; notes the reason. Returns false if
// interrupted.
bool run_cases(const Workload& workload, CaseTable& rows) {
  const WeightsPlan resident = workload.resident_plan();
  if (resident.device_bytes() > workload.free_bytes()) {
    rows.skip("resident", fmt::format("needs {}, and {} are free", base::format_bytes(resident.device_bytes()),
                                      base::format_bytes(workload.free_bytes())));
  } else if (!rows.add("resident", resident)) {
    return false;
  }
  const auto add = [&](const Case& one) {
    try {
      const WeightsPlan plan = plan_weights(workload.graph(), workload.costs(), one.options, {});
      if (!one.options.compressed || compresses(plan)) return rows.add(one.name, plan);
      rows.skip(one.name, "the planner compresses nothing, because no step would become 1 % shorter");
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      rows.skip(one.name, error.what());
    }
    return true;
  };
  const auto compressed_bytes = workload.compressed_bytes();
  for (Case& one : cases_of(workload.graph(), resident)) {
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
  require_runnable(wanted.workload, "bench");
  const Workload workload(wanted.workload);
  const Costs& costs = workload.costs();
  CaseTable rows(workload, wanted.steps);
  const bool complete = run_cases(workload, rows);
  write_json(wanted.json, {{"device", wanted.workload.device},
                           {"weights_bytes", workload.graph().bytes_of(ValueRole::kWeight)},
                           {"link_bytes_per_s", costs.load.bytes_per_second},
                           {"kernel_slowdown", costs.kernel_slowdown},
                           {"load_slowdown", costs.load_slowdown},
                           {"rows", json_of(rows.table())},
                           {"left_out", rows.notes()}});
  std::string notes;
  for (const std::string& note : rows.notes()) notes += paragraph(note, 2);
  fmt::print(
      "{}: {} ops, {} of weights, on {}; the link gives {}, a kernel takes {:.2f} times as long while a load "
      "runs\n\n{}{}",
      wanted.workload.model, workload.graph().ops().size(),
      base::format_bytes(workload.graph().bytes_of(ValueRole::kWeight)), wanted.workload.device,
      base::format_rate(costs.load.bytes_per_second), 1 + costs.kernel_slowdown, rows.table().text(), notes);
  if (!complete) return kInterrupted;
  return rows.wrong() ? kFailed : kSuccess;
}

}  // namespace

std::function<int()> add_weights_bench(CLI::App& bench) {
  auto wanted = std::make_shared<WeightsBenchOptions>();
  CLI::App* weights = bench.add_subcommand(
      "weights", "Measure a model with all weights resident, with 75, 50 and 25 % of them, and with two slots");
  weights->footer(
      "\nRuns the model each way; shows time, memory, load rate and prediction. `two slots`: no weight stays\n"
      "resident, and the ring has twice the bytes that any op needs at once. With --compress, or with a folder that\n"
      "slip compress wrote, each row comes a second time with compressed weights, where the planner uses them.\n"
      "Example:\n"
      "  slip bench weights model/ --device cuda:0 --compress");
  wanted->workload.add_model_to(*weights, true);
  weights->add_option("--steps", wanted->steps.steps, "Steps to run each way")->capture_default_str();
  weights->add_option("--seed", wanted->steps.seed, "Seed of the random inputs")->capture_default_str();
  add_output(*weights, "--json", wanted->json, "Write the table as data");
  return [wanted] { return bench_weights(*wanted); };
}

}  // namespace slip::cli
