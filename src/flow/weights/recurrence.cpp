#include "flow/weights/recurrence.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace slip {
namespace {

constexpr int kMaxSteps = 12;  // until two in a row take the same: the first ones feel that the ring was empty
constexpr double kSame = 1e-6;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Two servers, ops and loads, each with one job at a time. A job is so many picoseconds of work, done at a speed that
// depends on whether the other server works.
class TwoServers {
 public:
  TwoServers(const Pace& pace, std::span<const WeightLoad> loads)
      : pace_(pace), loads_(loads), loads_before_(pace.ops.size() + 1, 0) {
    for (const WeightLoad& load : loads) ++loads_before_[load.first_op + 1];
    std::partial_sum(loads_before_.begin(), loads_before_.end(), loads_before_.begin());
  }

  Period run() {
    Period last;
    double began = 0, exposed = 0;
    for (double now = 0; op_step_ < kMaxSteps;) {
      if (!op_left_) start_op();
      note_ready(now);
      if (!load_left_) start_load();
      const bool op_runs = op_left_ > 0, load_runs = load_left_ > 0;
      if (!op_runs && !load_runs) return {kInfinite, 0};  // cannot be: each waits for the other
      const double op_speed = load_runs ? 1 / (1 + pace_.kernel_slowdown) : 1;
      const double load_speed = op_runs ? 1 / (1 + pace_.load_slowdown) : 1;
      const double op_ends = op_runs ? op_left_ / op_speed : kInfinite;
      const double load_ends = load_runs ? load_left_ / load_speed : kInfinite;
      const double passed = std::min(op_ends, load_ends);
      now += passed;
      if (!op_runs) exposed += passed;
      if (load_ends <= op_ends) finish_load();
      else load_left_ -= load_runs ? passed * load_speed : 0;
      if (op_ends > load_ends) {
        op_left_ -= op_runs ? passed * op_speed : 0;
        continue;
      }
      finish_op();
      if (op_ != 0) continue;
      const Period step{now - began, exposed};
      if (std::abs(step.step - last.step) <= kSame * step.step) return step;
      // Several steps may take turns: then the mean of the last two is nearer than either.
      if (op_step_ == kMaxSteps) return {(step.step + last.step) / 2, (step.exposed + last.exposed) / 2};
      last = step;
      began = now;
      exposed = 0;
    }
    return last;
  }

 private:
  static constexpr double kMin = 1e-3;  // work of nothing: an op of unknown cost still takes its turn

  void start_op() {
    if (op_ == 0 && !pace_.inputs.empty() && input_step_ <= op_step_) return;
    const std::size_t needed = static_cast<std::size_t>(op_step_) * loads_.size() + loads_before_[op_ + 1];
    if (loads_done_ >= needed) op_left_ = std::max(pace_.ops[op_], kMin);
  }
  // The next input may come when the last op that reads one has run, of the step before.
  bool input_may_start() const {
    if (pace_.inputs.empty() || input_step_ >= kMaxSteps) return false;
    return input_step_ - 1 < op_step_ ||
           (input_step_ - 1 == op_step_ && (pace_.inputs_used == kNoOp || pace_.inputs_used < op_));
  }
  bool load_may_start() const {
    if (load_step_ >= kMaxSteps) return false;
    const WeightLoad& load = loads_[load_];
    if (load.after_op == kNoOp) return true;
    const int step = load_step_ - (load.step_before ? 1 : 0);
    return step < op_step_ || (step == op_step_ && load.after_op < op_);
  }
  void note_ready(double now) {
    if (input_ready_ == kInfinite && !(load_left_ > 0 && input_runs_) && input_may_start()) input_ready_ = now;
    if (load_ready_ == kInfinite && !(load_left_ > 0 && !input_runs_) && load_may_start()) load_ready_ = now;
  }
  // Inputs and loads are copies of two streams, which share an engine. It goes on with the stream that it serves if
  // that stream's next copy is ready when the last one ends (rule 50); else it takes first what was ready first.
  void start_load() {
    const bool goes_on = std::exchange(load_ended_, false) && (input_runs_ ? input_ready_ : load_ready_) != kInfinite;
    if (input_ready_ == kInfinite && load_ready_ == kInfinite) return;
    if (!goes_on) input_runs_ = input_ready_ <= load_ready_;
    (input_runs_ ? input_ready_ : load_ready_) = kInfinite;
    load_left_ = std::max(input_runs_ ? pace_.inputs[input_] : pace_.loads[loads_[load_].unit], kMin);
  }
  void finish_op() {
    op_left_ = 0;
    if (++op_ == pace_.ops.size()) op_ = 0, ++op_step_;
  }
  void finish_load() {
    load_left_ = 0;
    load_ended_ = true;
    if (input_runs_) {
      if (++input_ == pace_.inputs.size()) input_ = 0, ++input_step_;
      return;
    }
    ++loads_done_;
    if (++load_ == loads_.size()) load_ = 0, ++load_step_;
  }

  const Pace& pace_;
  std::span<const WeightLoad> loads_;
  std::vector<std::size_t> loads_before_;  // by op: loads of a step that ops before it need
  std::size_t op_ = 0, load_ = 0, loads_done_ = 0;
  std::size_t input_ = 0;
  int op_step_ = 0, load_step_ = 0, input_step_ = 0;
  bool input_runs_ = false;                                  // what runs as a load, or ran last, is an input
  bool load_ended_ = false;                                  // at this instant
  double input_ready_ = kInfinite, load_ready_ = kInfinite;  // since when the next one waits for its turn
  double op_left_ = 0, load_left_ = 0;
};

}  // namespace

Pace pace_of(const Graph& graph, const Costs& costs, const std::vector<WeightGroup>& groups) {
  Pace pace;
  pace.kernel_slowdown = costs.slowdown_of(graph);
  pace.load_slowdown = costs.load_slowdown;
  for (std::uint32_t i = 0; i < graph.ops().size(); ++i) {
    const GraphOp& op = graph.ops()[i];
    pace.ops.push_back(static_cast<double>(costs.time_of(graph, op)));
    const auto reads_input = [&](const ValueBytes& read) { return graph[read.value].role == ValueRole::kInput; };
    if (std::ranges::any_of(op.reads, reads_input)) pace.inputs_used = i;
  }
  for (const GraphValue& value : graph.values()) {
    if (value.role == ValueRole::kInput) pace.inputs.push_back(static_cast<double>(costs.load.time_for(value.bytes)));
  }
  for (const WeightGroup& group : groups) {
    // Read and copied piece by piece, each while the other works on its neighbour: the slower one sets the pace.
    const Picos copy = costs.load.time_for(group.bytes);
    pace.loads.push_back(
        static_cast<double>(group.from_disk ? std::max(copy, costs.read.time_for(group.bytes)) : copy));
  }
  return pace;
}

Period period_of(const Pace& pace, std::span<const WeightLoad> loads) {
  const double compute = std::accumulate(pace.ops.begin(), pace.ops.end(), 0.0);
  if (loads.empty()) return {compute, 0};
  double loading = 0;
  for (const WeightLoad& load : loads) loading += pace.loads[load.unit];
  Period period = TwoServers(pace, loads).run();
  // A large ring that was filled before the first step can feed many of them: that is not the steady state.
  const double missing = min_period(pace, compute, loading) - period.step;
  if (missing > 0) period.step += missing, period.exposed += missing;
  return period;
}

// Let both run together for a time x of a step T, with a = k / (1 + k) and b = l / (1 + l) for slowdowns k of ops and l
// of loads. Ops then run C + a x and loads L + b x, neither longer than T, and together at most T + x. Without x: T >=
// C + a L / (1 - b) and T >= L + b C / (1 - a), if a + b < 1; else running both at once gains nothing.
double min_period(const Pace& pace, double compute, double loading) {
  const double k = pace.kernel_slowdown, l = pace.load_slowdown;
  if (k * l >= 1) return compute + loading;
  return std::max(compute + loading * (1 + l) * k / (1 + k), loading + compute * (1 + k) * l / (1 + l));
}

}  // namespace slip
