// `slip plan MODEL` plans a model within a memory budget, proves and predicts the plan. `slip run MODEL` also runs it
// and compares the run with the prediction.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "cli/weights/workload.hpp"

namespace slip::cli {
namespace {

struct PlanOptions {
  WorkloadOptions workload;
  std::string output, html, json;
};

Json json_of(const WeightsPlan& plan, const WeightsProof& proof, const Prediction& prediction) {
  return {{"device_bytes", plan.device_bytes()},
          {"resident_bytes", plan.resident_bytes},
          {"ring_bytes", plan.ring_bytes},
          {"slot_bytes", plan.slot_bytes},
          {"activation_bytes", plan.activation_bytes},
          {"streamed_bytes", plan.streamed_bytes},
          {"link_bytes", plan.link_bytes()},
          {"decoding_ps", plan.decoding},
          {"loads", plan.loads.size()},
          {"step_ps", prediction.step},
          {"first_step_ps", prediction.first_step},
          {"exposed_ps", prediction.exposed},
          {"bound_ps", plan.bound},
          {"resident_ps", plan.compute},
          {"verdict", verdict_name(proof.verdict)}};
}

std::string proof_line(const WeightsProof& proof) {
  return fmt::format("proof          {}: {} ops and {} waits of {} steps", verdict_name(proof.verdict), proof.ops,
                     proof.waits, proof.steps);
}

int run_plan(const PlanOptions& options) {
  const Workload workload(options.workload);
  const WeightsPlan plan = workload.plan();
  const WeightsProof proof = verify_weights(plan, workload.graph(), {});
  const Prediction prediction = predict_weights(plan, workload.graph(), workload.costs(), 4, {});
  write_json(options.json, json_of(plan, proof, prediction));
  fmt::print("{}", describe(plan, workload.graph(), workload.costs()));
  fmt::print("simulated      {} a step, {} the first; no op runs for {} of it\n", base::format_time(prediction.step),
             base::format_time(prediction.first_step), base::format_time(prediction.exposed));
  // The model may be planned for a device that is not here, so the loader of that device is not known.
  fmt::print("{}{}\n", proof_line(proof), plan.loads.empty() ? "" : "; assumes loads from pinned host memory");
  if (!proof.proven()) fmt::print("{}", proof.text);
  if (!options.output.empty()) write_weights_plan(plan, workload.graph(), options.output, {});
  const std::string title = "predicted: " + options.workload.model;
  if (!options.html.empty()) write_html(prediction.trace, options.html, title);
  return proof.proven() ? kSuccess : kFailed;
}

struct RunOptions {
  WorkloadOptions workload;
  StepOptions steps;
  std::string plan, trace, html, json;
  bool check = false;
};

void add_row(Table& table, const char* label, const WeightsPlan& plan, const StepsResult& result, const Costs& costs,
             Cell outputs) {
  const double achieved = result.loaded_per_second(plan);
  const Comparison& found = result.comparison;
  table.row({word(label), time(found.measured), time(found.predicted), percent(100 * found.error()),
             time(found.measured_exposed), result.figures.copy > 0 ? percent(result.figures.overlap_percent()) : none(),
             bytes(result.peak), plan.loads.empty() ? none() : rate(achieved),
             plan.loads.empty() ? none() : percent(100 * achieved / costs.load.bytes_per_second), std::move(outputs)});
}

// Proves the order of ops and loads before the plan runs: a plan file may be damaged or edited.
WeightsProof prove(const WeightsPlan& plan, const Workload& workload) {
  WeightsProof proof = verify_weights(plan, workload.graph(), workload.open(plan), workload.source(), {});
  if (!proof.proven()) {
    fmt::print("{}", proof.text);  // several lines: the races and their fixes
    base::fail(ErrorCode::kInvalidValue, {}, "the plan is not run, because its proof says: {}",
               verdict_name(proof.verdict));
  }
  return proof;
}

void write_files(const RunOptions& options, const StepsResult& result) {
  if (!options.trace.empty()) write_trace(result.trace, options.trace, {});
  if (!options.html.empty()) write_html(result.trace, options.html, options.workload.model, &result.prediction.trace);
}

int run_model(RunOptions options) {
  options.steps.check();
  require_runnable(options.workload, "run");
  const Workload workload(options.workload);
  const WeightsPlan plan =
      options.plan.empty() ? workload.plan() : read_weights_plan(workload.graph(), options.plan, {});
  const WeightsProof proof = prove(plan, workload);
  Table table("",
              {"weights=case", "a step=step_ps", "predicted=predicted_ps", "off=error_percent", "idle=idle_ps",
               "overlap=overlap_percent", "peak memory=peak_bytes", "loaded=bytes_per_s", "=link_percent", "outputs"});
  std::optional<StepsResult> resident;
  if (options.check) {
    const WeightsPlan all = workload.resident_plan();
    options.steps.label = "all resident";
    resident = run_steps(workload, all, options.steps);
    if (resident->steps < options.steps.steps) return stopped(*resident, options.steps);
    add_row(table, "all resident", all, *resident, workload.costs(), none());
  }
  options.steps.label = plan.loads.empty() ? "all resident" : "as planned";
  const StepsResult result = run_steps(workload, plan, options.steps);
  if (result.steps < options.steps.steps) {
    write_files(options, result);
    return stopped(result, options.steps);
  }
  const bool equal = !resident || resident->outputs == result.outputs;
  add_row(table, options.steps.label, plan, result, workload.costs(),
          resident ? word(equal ? "equal" : "WRONG") : none());
  write_json(options.json, json_of(table));
  fmt::print("{}{}\n\n", describe(plan, workload.graph(), workload.costs()), proof_line(proof));
  fmt::print("{}\nthe run beside its prediction, and the ops that differ most:\n{}", table.text(),
             result.comparison.text());
  write_files(options, result);
  return equal ? kSuccess : kFailed;
}

}  // namespace

std::function<int()> add_plan(CLI::App& app) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* plan = app.add_subcommand("plan", "Plan a model within a budget: prove and predict it, without running");
  plan->footer(
      "\nSays which weights stay on the device and which pass through a ring while earlier ops compute, what a step\n"
      "takes, what cannot be hidden, and that nothing races. Examples:\n"
      "  slip plan model/ --budget 2GiB\n"
      "  slip plan model/ --device sim:h200 --slowdown 5");
  options->workload.add_to(*plan, false);
  add_named_output(*plan, "-o,--output", options->output, "Write the plan as JSON, for slip run --plan");
  add_output(*plan, "--html", options->html, "Write the predicted timeline as a page");
  add_output(*plan, "--json", options->json, "Write the figures as data");
  return [options] { return run_plan(*options); };
}

std::function<int()> add_run(CLI::App& app) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* run = app.add_subcommand("run", "Run a model within a budget of device memory");
  run->footer(
      "\nPlans, proves, predicts and runs; shows times, memory and how far the prediction was off. Examples:\n"
      "  slip model stack --blocks 8 -o model/\n"
      "  slip run model/ --budget 120MiB --check --html run.html");
  options->workload.add_to(*run, true);
  CLI::Option* plan =
      run->add_option("--plan", options->plan, "Use this plan, which slip plan -o wrote, instead of planning");
  for (const char* planning : {"--budget", "--slowdown", "--ring", "--host-memory", "--stream-all"})
    plan->excludes(run->get_option(planning));
  run->add_option("--steps", options->steps.steps, "Steps to run")->capture_default_str();
  run->add_option("--seed", options->steps.seed, "Seed of the random inputs")->capture_default_str();
  run->add_flag("--check", options->check, "Also run with all weights resident, and compare the outputs bit by bit");
  add_output(*run, "--trace", options->trace, "Write the run as a trace");
  add_output(*run, "--html", options->html, "Write the timeline as a page, the prediction below the run");
  add_output(*run, "--json", options->json, "Write the table as data");
  return [options] { return run_model(*options); };
}

}  // namespace slip::cli
