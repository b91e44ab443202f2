// `slip plan MODEL`: plans, proves and predicts, without running.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
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
  fmt::print("proof          {}: {} ops and {} waits of {} steps{}\n", verdict_name(proof.verdict), proof.ops,
             proof.waits, proof.steps, plan.loads.empty() ? "" : "; assumes loads from pinned host memory");
  if (!proof.proven()) fmt::print("{}", proof.text);
  if (!options.output.empty()) write_weights_plan(plan, workload.graph(), options.output, {});
  const std::string title = "predicted: " + options.workload.model;
  if (!options.html.empty()) write_html(prediction.trace, options.html, title);
  return proof.proven() ? kSuccess : kFailed;
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

}  // namespace slip::cli
