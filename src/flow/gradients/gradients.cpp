#include "slip/gradients.hpp"

#include <fmt/format.h>

#include <exception>
#include <numeric>

#include "flow/gradients/gradient_report.hpp"
#include "flow/gradients/gradients_state.hpp"

namespace slip {

Gradients::State::State(Communicator& communicator, const Device& on, GradientOptions asked)
    : comm(communicator),
      device(on),
      options(std::move(asked)),
      reduction(options.compression, options.hook),
      cost(options.cost) {}

Gradients::State::~State() {
  if (!step) return;
  // The other ranks wait for calls that never come when this one leaves in the middle, or by an exception.
  const bool gives_up = std::uncaught_exceptions() > exceptions || (!step->ended() && !captured && paused == 0);
  const auto tell_others = [&](Code code, const std::string& what) {
    if (!comm.error()) comm.fail(code, fmt::format("gradients, rank {} of {}: {}", comm.rank(), comm.nranks(), what));
  };
  if (gives_up) tell_others(Code::kAborted, fmt::format("it gave up in step {}", steps));
  try {
    step->stream().sync();
  } catch (const Error& error) {  // was told to who waited for it
    tell_others(error.code(), error.what());
  }
}

void Gradients::State::require_sealed(const char* call, Here here) const {
  if (!sealed) throw Error(Code::kNotReady, fmt::format("gradients: {} before seal()", call), here);
}

std::uint32_t Gradients::State::index_of(ParameterId parameter, const char* call, Here here) const {
  require_sealed(call, here);
  const auto index = static_cast<std::uint32_t>(parameter);
  if (index >= parameters.size())
    throw Error(Code::kInvalidValue,
                fmt::format("gradients: {} of parameter {}, and there are {}", call, index, parameters.size()), here);
  return index;
}

void Gradients::State::fail(Code code, const std::string& what, Here here) const {
  const std::string text = fmt::format("gradients, rank {} of {}: {}", comm.rank(), comm.nranks(), what);
  comm.fail(code, text);
  throw Error(code, text, here);
}

void Gradients::State::seal(Here here) {
  if (sealed) throw Error(Code::kInvalidValue, "gradients: sealed already", here);
  const Stream stream = device.stream(StreamFlags::kNonBlocking, 0, here);
  require_same(parameters, options, comm, device, stream, here);
  if (parameters.size() == 0) throw Error(Code::kInvalidValue, "gradients: no parameters", here);
  std::vector<std::uint32_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0U);  // the last of the forward pass comes first
  layout = GradientLayout(parameters, order);
  const bool planned = options.buckets == BucketRule::kPlanned;
  if (planned && !cost.known()) cost = measure_reduction(reduction, comm, stream, layout.bytes(), here);
  cost_alone = cost;
  set_memory(here);
  step.emplace(comm, device, parameters, reduction);
  clock.emplace(parameters.size());
  if (options.norm) norm.emplace(device, parameters, here);
  if (planned) agreement.emplace(comm, device, parameters.size(), here);
  const GradientProfile sizes = layout.profile();
  adopt(options.buckets == BucketRule::kEach ? each_alone(sizes) : ddp_buckets(sizes, options.ddp), here);
  sealed = true;
}

void Gradients::State::begin_if_ended(StreamRef stream) {
  if (!step->ended()) return;
  captured = stream.capturing();
  clipped = false;
  const bool planned = options.buckets == BucketRule::kPlanned;
  const bool wanted = options.measure || (planned && steps == 0) || check == Check::kRecord;
  clock->begin_step(wanted && paused == 0 && !captured, step->calls());
  step->begin();
}

void Gradients::State::tell(std::uint32_t parameter, StreamRef stream, const char* call, Here here) {
  if (step->is_ready(parameter))
    fail(Code::kInvalidValue,
         fmt::format("{} twice in step {} for parameter {}", call, steps, parameters[parameter].text()), here);
  begin_if_ended(stream);
  if (paused > 0) return step->note(parameter);
  const std::uint32_t before = step->made();
  try {
    step->ready(parameter, stream, *clock, here);
    if (norm) norm->follow(*step, before, step->made(), here);
  } catch (const std::exception& error) {
    if (comm.error()) throw;  // every rank has it already
    const auto* const own = dynamic_cast<const Error*>(&error);
    fail(own ? own->code() : Code::kLaunchFailed,
         fmt::format("{} in step {} for parameter {}: {} of {} failed: {}", call, steps, parameters[parameter].text(),
                     reduction.is_hook() ? "the hook" : "the reduction", step->text_of(step->made()), error.what()),
         here);
  }
}

void Gradients::State::end_step(Here here) {
  require_sealed("step_end()", here);
  if (step->ended())
    fail(Code::kInvalidValue,
         fmt::format("step {} ends without any gradient; the first that is missing is that of parameter {}", steps,
                     parameters[0].text()),
         here);
  const std::uint32_t missing = step->first_missing();
  if (missing < parameters.size())
    fail(Code::kInvalidValue,
         fmt::format("step {} ends and parameter {} had neither ready() nor absent()", steps,
                     parameters[missing].text()),
         here);
  step->end();
  if (paused > 0) return;
  if (norm && !clipped)
    fail(Code::kInvalidValue, fmt::format("step {} ends without clip_norm(), which options.norm promised", steps),
         here);
  if (captured) return;
  ++steps;
  ++steps_of_plan;
  if (options.buckets != BucketRule::kPlanned) return;
  if (steps == 1) first_plan(here);
  else check_plan(here);
}

Gradients::Gradients(Communicator& comm, const Device& device, GradientOptions options, Here here) {
  if (options.check_every < 0)
    throw Error(Code::kInvalidValue, fmt::format("gradients: a check every {} steps", options.check_every), here);
  if (options.hook && options.compression != Compression::kNone)
    throw Error(Code::kInvalidValue, "gradients: a hook takes the place of compression; ask for one of them", here);
  state_ = std::make_unique<State>(comm, device, std::move(options));
}
Gradients::Gradients(Gradients&&) noexcept = default;
Gradients& Gradients::operator=(Gradients&&) noexcept = default;
Gradients::~Gradients() = default;

ParameterId Gradients::add(std::string_view name, std::uint64_t bytes, DataType type, Here here) {
  if (state_->sealed)
    throw Error(Code::kInvalidValue, fmt::format("gradients: parameter '{}' comes after seal()", name), here);
  try {
    return ParameterId{state_->parameters.add(name, bytes, type, here)};
  } catch (const Error& error) {
    state_->fail(error.code(), error.what(), here);
  }
}

void Gradients::seal(Here here) { state_->seal(here); }

Range Gradients::view(ParameterId parameter, Here here) const {
  return state_->step->view(state_->index_of(parameter, "view()", here));
}

void Gradients::ready(ParameterId parameter, StreamRef stream, Here here) {
  state_->tell(state_->index_of(parameter, "ready()", here), stream, "ready()", here);
}

void Gradients::absent(ParameterId parameter, StreamRef stream, Here here) {
  const std::uint32_t index = state_->index_of(parameter, "absent()", here);
  if (state_->paused == 0) stream.fill(state_->step->view(index), 0, {}, here);
  state_->tell(index, stream, "absent()", here);
}

void Gradients::wait(ParameterId parameter, StreamRef stream, Here here) {
  const std::uint32_t index = state_->index_of(parameter, "wait()", here);
  GradientStep& step = *state_->step;
  if (state_->paused > 0) return;
  const std::uint32_t call = step.last_call(index);
  if (!step.is_made(call))
    throw Error(
        Code::kNotReady,
        fmt::format("gradients, rank {} of {}: wait() for parameter {}, whose reduction waits for that of {}",
                    state_->comm.rank(), state_->comm.nranks(), state_->parameters[index].text(), step.missing(call)),
        here);
  GradientClock& clock = *state_->clock;
  if (clock.records()) clock.reached(index, call, stream, here);
  stream.wait(step.done(call), here);
  if (clock.records()) clock.left(stream, here);
}

// Whether it can be clipped now: false in a step that is not reduced.
bool Gradients::State::can_clip(double most, Here here) const {
  require_sealed("clip_norm()", here);
  if (!norm) throw Error(Code::kInvalidValue, "gradients: clip_norm() without options.norm", here);
  if (!(most > 0)) throw Error(Code::kInvalidValue, fmt::format("gradients: a norm of at most {}", most), here);
  if (paused > 0) return false;
  const auto last = static_cast<std::uint32_t>(step->calls() - 1);
  if (step->ended() || !step->is_made(last))
    throw Error(Code::kNotReady, fmt::format("gradients: clip_norm() waits for parameter {}", step->missing(last)),
                here);
  return true;
}

void Gradients::clip_norm(double most, StreamRef stream, Here here) {
  if (!state_->can_clip(most, here)) return;
  state_->norm->clip(most, *state_->step, stream, *state_->clock, here);
  state_->clipped = true;
}

// Each group of ranks counts once: of n ranks with the same gradients each adds the n-th part.
void Gradients::clip_norm(std::span<Gradients* const> sets, Communicator& all, double most, StreamRef stream,
                          Here here) {
  if (sets.empty()) throw Error(Code::kInvalidValue, "gradients: clip_norm() of none", here);
  std::size_t can = 0;
  for (const Gradients* const set : sets) can += set->state_->can_clip(most, here) ? 1 : 0;
  if (can == 0) return;
  if (can < sets.size())
    throw Error(Code::kInvalidValue,
                "gradients: clip_norm() of some that are reduced in this step and some that are not", here);
  const Range total = sets.front()->state_->norm->own_total();
  for (Gradients* const set : sets) set->state_->norm->await(*set->state_->step, stream, *set->state_->clock, here);
  for (Gradients* const set : sets)
    set->state_->norm->total(total, set == sets.front() ? GradientNorm::Total::kSet : GradientNorm::Total::kAdd,
                             1.0 / set->state_->comm.nranks(), stream, here);
  all.all_reduce(total, total, DataType::kF64, ReduceOp::kSum, stream, here);
  for (Gradients* const set : sets) {
    set->state_->norm->scale(total, most, *set->state_->step, stream, here);
    set->state_->clipped = true;
  }
}

Range Gradients::norm() const { return state_->norm ? state_->norm->norm() : Range{}; }
void Gradients::step_end(Here here) { state_->end_step(here); }
std::uint64_t Gradients::steps() const { return state_->steps; }
const BucketPlan& Gradients::plan() const { return state_->plan; }
std::uint64_t Gradients::plans() const { return state_->plans; }
const ReduceCost& Gradients::cost() const { return state_->cost; }
const GradientProfile& Gradients::profile() const { return state_->profile; }

std::optional<GradientReport> Gradients::report() const {
  if (!state_->sealed) return std::nullopt;
  GradientTimes times;
  for (const int ago : {1, 0}) {  // one that another step follows has its length
    const bool ends_here = ago == 0 && !state_->step->ended();
    // While a step is under way it has not been counted yet.
    const std::uint64_t back = static_cast<std::uint64_t>(ago) - (state_->step->ended() ? 0 : 1);
    if (ends_here || back >= state_->steps_of_plan || !state_->clock->look(ago, times)) continue;
    GradientReport report = report_of(
        times, [&](std::uint32_t parameter) { return state_->step->calls_of(parameter); }, state_->plan, state_->cost);
    for (std::uint32_t call = 0; call < report.buckets.size(); ++call)
      report.buckets[call].gradients = state_->step->text_of(call, GradientStep::Detail::kName);
    report.step = state_->steps - 1 - back;
    return report;
  }
  return std::nullopt;
}

Gradients::NoSync::NoSync(Gradients& gradients) : gradients_(gradients) { ++gradients_.state_->paused; }
Gradients::NoSync::~NoSync() { --gradients_.state_->paused; }

}  // namespace slip
