// What a Gradients object is made of.
#pragma once

#include <exception>
#include <optional>

#include "flow/gradients/gradient_agreement.hpp"
#include "flow/gradients/gradient_clock.hpp"
#include "flow/gradients/gradient_norm.hpp"
#include "flow/gradients/gradient_reduction.hpp"
#include "flow/gradients/gradient_set.hpp"
#include "flow/gradients/gradient_step.hpp"
#include "slip/gradients.hpp"

namespace slip {

struct Gradients::State {
  State(Communicator& communicator, const Device& on, GradientOptions asked);
  ~State();

  void require_sealed(const char* call, Here here) const;
  std::uint32_t index_of(ParameterId parameter, const char* call, Here here) const;
  // What the ranks cannot go on after: told to all of them.
  [[noreturn]] void fail(Code code, const std::string& what, Here here) const;
  void seal(Here here);
  void begin_if_ended(StreamRef stream);
  void tell(std::uint32_t parameter, StreamRef stream, const char* call, Here here);
  void end_step(Here here);
  bool can_clip(double most, Here here) const;

  // Planning, in gradients_plan.cpp.
  void set_memory(Here here);
  void first_plan(Here here);
  void check_plan(Here here);
  void collect(Here here);
  void decide(Here here);
  void set_times(std::span<const Picos> arrivals);
  double slowdown_of_calls(std::span<const Picos> arrivals);
  bool has_drifted(std::span<const Picos> arrivals, double slowdown) const;
  bool gains(const BucketPlan& next, Here here) const;
  BucketPlan make_plan(Here here) const;
  void adopt(BucketPlan next, Here here);

  Communicator& comm;
  const Device device;
  const GradientOptions options;
  const GradientReduction reduction;
  ParameterList parameters;
  bool sealed = false;
  const int exceptions = std::uncaught_exceptions();  // under way when it was made

  // From seal() on.
  ReduceCost cost_alone, cost;  // of calls with nothing beside them, and in steps
  double slowed = 1;            // one by the other
  GradientLayout layout;
  SharedBuffer memory, scratch;
  std::optional<GradientStep> step;
  std::optional<GradientClock> clock;
  std::optional<GradientNorm> norm;
  std::optional<GradientAgreement> agreement;
  BucketPlan plan;
  GradientProfile profile;  // as it was measured when a plan was last looked for
  std::uint64_t plans = 0;

  int paused = 0;         // NoSync objects
  bool captured = false;  // this step becomes a plan: nothing of it runs
  bool clipped = false;   // in this step
  std::uint64_t steps = 0, steps_of_plan = 0;

  // What is under way between steps: at most one thing in each.
  enum class Check : std::uint8_t { kIdle, kRecord, kCollect, kDecide, kAdopt } check = Check::kIdle;
  GradientTimes times;  // of the step that was recorded last
  Needs needs;
};

}  // namespace slip
