#include "flow/weights/recurrence.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

constexpr int kMaxSteps = 12;  // limit; the simulation ends earlier if two steps in a row take equally long
constexpr double kSame = 1e-6;

// The position of the next job (op, load or input) in a sequence that repeats in every step.
struct JobPosition {
  std::size_t index = 0;  // in its step
  int step = 0;

  void advance(std::size_t jobs) {
    if (++index == jobs) index = 0, ++step;
  }
};

// A simulation with two servers, one for ops and one for loads, each with one job at a time. A job is an amount of work
// in picoseconds; a server is slower while the other one is busy.
class TwoServers {
 public:
  TwoServers(const StepCosts& step_costs, std::span<const WeightLoad> loads, std::span<const char> resident)
      : step_costs_(step_costs), loads_(loads), resident_(resident), loads_before_(step_costs.ops.size() + 1, 0) {
    for (const WeightLoad& load : loads) ++loads_before_[load.first_op + 1];
    std::partial_sum(loads_before_.begin(), loads_before_.end(), loads_before_.begin());
  }

  SteadyStep run() {
    SteadyStep last;
    double began = 0, exposed = 0;
    for (double now = 0; op_.step < kMaxSteps;) {
      if (!op_left_) start_op();
      note_ready(now);
      if (!load_left_) start_load();
      const bool op_runs = op_left_ > 0, load_runs = load_left_ > 0;
      if (!op_runs && !load_runs) return {kInfinite, 0};  // a deadlock, which check_plan excludes
      const double op_speed = load_runs ? 1 / (1 + step_costs_.kernel_slowdown) : 1;
      const double load_speed = op_runs ? 1 / (1 + step_costs_.load_slowdown) : 1;
      const double op_ends = op_runs ? op_left_ / op_speed : kInfinite;
      const double load_ends = load_runs ? load_left_ / load_speed : kInfinite;
      const double passed = std::min(op_ends, load_ends);
      now += passed;
      if (!op_runs || passed_.decoding) exposed += passed;
      if (load_ends <= op_ends) finish_load();
      else load_left_ -= load_runs ? passed * load_speed : 0;
      if (op_ends > load_ends) {
        op_left_ -= op_runs ? passed * op_speed : 0;
        continue;
      }
      const bool decoded = std::exchange(passed_.decoding, false);
      if (decoded) finish_decoding();
      else finish_op();
      if (decoded || op_.index != 0) continue;
      const SteadyStep step{now - began, exposed};
      if (std::abs(step.step - last.step) <= kSame * step.step) return step;
      // Steps may alternate between two lengths. Then the mean of two steps is nearer to the average than either one.
      if (op_.step == kMaxSteps) return {(step.step + last.step) / 2, (step.exposed + last.exposed) / 2};
      last = step;
      began = now;
      exposed = 0;
    }
    return last;
  }

 private:
  // Minimum cost of an op or load, in picoseconds. op_left_ == 0 means that no op runs, so a cost of 0 is not possible.
  static constexpr double kMin = 1e-3;

  const WeightLoad& load_at(std::size_t number) const { return loads_[number % loads_.size()]; }
  double decode_time(std::size_t number) const { return step_costs_.decodes[load_at(number).group]; }
  // A resident group is decoded from where it is.
  bool takes_slot(std::size_t number) const { return decode_time(number) > 0 && !stays(load_at(number).group); }
  bool stays(std::uint32_t group) const { return !resident_.empty() && resident_[group]; }
  // The op that used its place in the ring before has ended. Loads are numbered over all steps.
  bool place_is_free(std::size_t number) const {
    const WeightLoad& load = load_at(number);
    if (load.after_op == kNoOp) return true;
    const int step = static_cast<int>(number / loads_.size()) - (load.step_before ? 1 : 0);
    return step < op_.step || (step == op_.step && load.after_op < op_.index);
  }
  // True if the next load is in its slot, and its place is free, but it is not decoded.
  bool must_decode() {
    while (passed_.done < passed_.copied && decode_time(passed_.done) <= 0) ++passed_.done;
    return passed_.done < passed_.copied && place_is_free(passed_.done);
  }
  void start_op() {
    if (must_decode()) {
      passed_.decoding = true;
      op_left_ = std::max(decode_time(passed_.done), kMin);
      return;
    }
    if (op_.index == 0 && !step_costs_.inputs.empty() && input_.step <= op_.step) return;
    const std::size_t needed = static_cast<std::size_t>(op_.step) * loads_.size() + loads_before_[op_.index + 1];
    if (passed_.done >= needed) op_left_ = std::max(step_costs_.ops[op_.index], kMin);
  }
  // The next step's input may be copied when the last op that reads this step's input has run.
  bool input_may_start() const {
    if (step_costs_.inputs.empty() || input_.step >= kMaxSteps) return false;
    return input_.step - 1 < op_.step ||
           (input_.step - 1 == op_.step && (step_costs_.inputs_used == kNoOp || step_costs_.inputs_used < op_.index));
  }
  bool load_may_start() const {
    if (load_.step >= kMaxSteps) return false;
    if (decode_time(passed_.copied) > 0) return !takes_slot(passed_.copied) || passed_.in_slots < kDecodeSlots;
    return place_is_free(passed_.copied);
  }
  void note_ready(double now) {
    if (input_ready_ == kInfinite && !(load_left_ > 0 && input_runs_) && input_may_start()) input_ready_ = now;
    if (load_ready_ == kInfinite && !(load_left_ > 0 && !input_runs_) && load_may_start()) load_ready_ = now;
  }
  // Inputs and loads are copies in two streams that share one engine. When a copy ends, the engine continues with the
  // same stream if its next copy is ready (rule 50 in docs/semantics.md). Otherwise it takes the copy that became ready
  // first.
  void start_load() {
    const bool goes_on = std::exchange(load_ended_, false) && (input_runs_ ? input_ready_ : load_ready_) != kInfinite;
    if (input_ready_ == kInfinite && load_ready_ == kInfinite) return;
    if (!goes_on) input_runs_ = input_ready_ <= load_ready_;
    (input_runs_ ? input_ready_ : load_ready_) = kInfinite;
    const std::uint32_t group = loads_[load_.index].group;
    load_left_ =
        std::max(input_runs_ ? step_costs_.inputs[input_.index] : (stays(group) ? 0 : step_costs_.loads[group]), kMin);
  }
  void finish_decoding() {
    op_left_ = 0;
    if (takes_slot(passed_.done)) --passed_.in_slots;
    ++passed_.done;
  }
  void finish_op() {
    op_left_ = 0;
    op_.advance(step_costs_.ops.size());
  }
  void finish_load() {
    load_left_ = 0;
    load_ended_ = true;
    if (input_runs_) return input_.advance(step_costs_.inputs.size());
    if (decode_time(passed_.copied) <= 0 && passed_.done == passed_.copied) ++passed_.done;
    if (takes_slot(passed_.copied)) ++passed_.in_slots;
    ++passed_.copied;
    load_.advance(loads_.size());
  }

  const StepCosts& step_costs_;
  std::span<const WeightLoad> loads_;
  std::span<const char> resident_;         // by group; empty: none
  std::vector<std::size_t> loads_before_;  // by op: number of a step's loads that the ops before it need
  JobPosition op_, load_, input_;          // those that run, or run next
  // Loads, numbered over all steps.
  struct {
    std::size_t copied = 0, done = 0;  // in a slot or in the ring; in the ring
    std::size_t in_slots = 0;          // compressed ones that are copied and not decoded
    bool decoding = false;             // op_left_ is of a decoding, not of an op
  } passed_;
  bool input_runs_ = false;                                  // the copy that runs, or ran last, is an input
  bool load_ended_ = false;                                  // a copy ended at this instant
  double input_ready_ = kInfinite, load_ready_ = kInfinite;  // since when the next copy waits; kInfinite: it does not
  double op_left_ = 0, load_left_ = 0;
};

}  // namespace

StepCosts step_costs_of(const Graph& graph, const Costs& costs, const std::vector<WeightGroup>& groups) {
  StepCosts step_costs;
  step_costs.kernel_slowdown = costs.slowdown_of(graph);
  step_costs.load_slowdown = costs.load_slowdown;
  for (std::uint32_t i = 0; i < graph.ops().size(); ++i) {
    const GraphOp& op = graph.ops()[i];
    step_costs.ops.push_back(static_cast<double>(costs.time_of(graph, op)));
    const auto reads_input = [&](const ValueBytes& read) { return graph[read.value].role == ValueRole::kInput; };
    if (std::ranges::any_of(op.reads, reads_input)) step_costs.inputs_used = i;
  }
  for (const GraphValue& value : graph.values()) {
    if (value.role == ValueRole::kInput)
      step_costs.inputs.push_back(static_cast<double>(costs.load.time_for(value.bytes)));
  }
  for (const WeightGroup& group : groups) {
    // A group is read from disk while the previous group is copied to the device. So the slower of the two counts.
    // Where device memory is host memory, a compressed group is decoded from where it is.
    const bool is_copied = group.compressed_bytes == 0 || costs.device != "cpu";
    const Picos copy = is_copied ? costs.load.time_for(group.stored_bytes()) : 0;
    step_costs.loads.push_back(
        static_cast<double>(group.from_disk ? std::max(copy, costs.read.time_for(group.stored_bytes())) : copy));
    step_costs.decodes.push_back(group.compressed_bytes > 0 ? static_cast<double>(costs.decode.time_for(group.bytes))
                                                            : 0.0);
  }
  return step_costs;
}

SteadyStep steady_step_of(const StepCosts& step_costs, std::span<const WeightLoad> loads,
                          std::span<const char> resident) {
  double compute = std::accumulate(step_costs.ops.begin(), step_costs.ops.end(), 0.0);
  if (loads.empty()) return {compute, 0};
  double loading = 0;
  for (const WeightLoad& load : loads) {
    loading += !resident.empty() && resident[load.group] ? 0 : step_costs.loads[load.group];
    compute += step_costs.decodes[load.group];
  }
  SteadyStep steady = TwoServers(step_costs, loads, resident).run();
  // If a large ring buffer is full before the first step, it can supply many steps, and these are shorter than the
  // steady state. So the result is raised to the lower bound of the steady state.
  const double missing = min_steady_step(step_costs, compute, loading) - steady.step;
  if (missing > 0) steady.step += missing, steady.exposed += missing;
  return steady;
}

void set_times(WeightsPlan& plan, const StepCosts& step_costs) {
  double loading = 0, decoding = 0;
  std::vector<char> resident;
  for (const WeightGroup& group : plan.groups) resident.push_back(group.resident ? 1 : 0);
  for (const WeightLoad& load : plan.loads) {
    const WeightGroup& group = plan.groups[load.group];
    decoding += step_costs.decodes[load.group];
    if (group.resident) continue;
    plan.streamed_bytes += group.bytes;
    loading += step_costs.loads[load.group];
  }
  plan.step = plan.bound = step_costs.ops.empty() ? 0 : rounded(steady_step_of(step_costs, plan.loads, resident).step);
  plan.compute = rounded(std::accumulate(step_costs.ops.begin(), step_costs.ops.end(), 0.0));
  plan.loading = rounded(loading);
  plan.decoding = rounded(decoding);
}

Picos rounded(double time) { return std::llround(std::min(time, 9e18)); }

// Let C be the time of the ops alone, and L that of the loads. Let both run concurrently for a time x of a step T. Let
// k be the slowdown of ops and l that of loads, a = k / (1 + k) and b = l / (1 + l). Then the ops run for C + a x and
// the loads for L + b x. Neither is longer than T, and their sum is at most T + x. Eliminating x: T >= C + a L / (1 -
// b) and T >= L + b C / (1 - a), if a + b < 1. Otherwise running both concurrently gains nothing, and T >= C + L.
double min_steady_step(const StepCosts& step_costs, double compute, double loading) {
  const double k = step_costs.kernel_slowdown, l = step_costs.load_slowdown;
  if (k * l >= 1) return compute + loading;
  return std::max(compute + loading * (1 + l) * k / (1 + k), loading + compute * (1 + k) * l / (1 + l));
}

}  // namespace slip::flow

namespace slip {

std::uint64_t WeightsPlan::link_bytes() const {
  std::uint64_t bytes = 0;
  for (const WeightLoad& load : loads) bytes += groups[load.group].resident ? 0 : groups[load.group].stored_bytes();
  return bytes;
}

}  // namespace slip
