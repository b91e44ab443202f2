#include "slip/gradients.hpp"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/api/communicator_state.hpp"
#include "flow/gradients/cuda_gradients.hpp"
#include "flow/gradients/gradient_norm.hpp"
#include "flow/gradients/gradient_planner.hpp"
#include "flow/gradients/gradient_times.hpp"

namespace slip {
namespace {

// Memory of destroyed Gradients objects on GPUs, if several ranks are in this process. Freeing it waits until the GPU
// is idle, and a kernel there may wait for this rank (gradient_set.hpp). The destructor cannot know which calls the
// other ranks have made, so the memory is kept until the next seal(). Any thread may add to it or free it. Never
// destroyed: at exit the CUDA runtime may be shut down already.
struct Retired {
  base::Mutex mutex;
  std::vector<Buffer> memory SLIP_GUARDED_BY(mutex);
};
Retired& retired() { return base::process_wide<Retired>(); }

// REQUIRES: no kernel waits for this rank.
void free_retired() {
  std::vector<Buffer> all;
  const base::LockGuard lock(retired().mutex);
  all.swap(retired().memory);
}

}  // namespace

struct Gradients::State {
  State(Communicator communicator, const Device& on, GradientOptions asked);
  ~State();

  bool sealed() const { return count.plans > 0; }
  void require_sealed(const char* call, Here here) const;
  std::uint32_t index_of(ParameterId parameter, const char* call, Here here) const;
  // Throws an error after which the ranks cannot continue together; every rank gets it.
  template <class... Values>
  [[noreturn]] void fail(ErrorCode code, Here here, fmt::format_string<Values...> what, Values&&... values) {
    const std::string text = fmt::format("gradients, rank {} of {}: {}", comm.rank(), comm.nranks(),
                                         fmt::format(what, std::forward<Values>(values)...));
    comm.fail(code, text);
    throw Error(code, text, here);
  }
  void seal(Here here);
  void begin_if_ended(StreamRef stream);
  void note_ready(std::uint32_t parameter, StreamRef stream, const char* call, Here here);
  void end_step(Here here);
  bool can_clip(double max_norm, Here here) const;
  bool has_gpu_rank_beside() const;
  void retire_memory();
  void set_memory(StreamRef stream, Here here);
  void lay_out_anew(const std::vector<std::uint32_t>& order, Here here);
  void plan_next(Here here);
  void adopt(BucketPlan next, Here here);

  // Shares the state of the program's Communicator, which may be moved or destroyed.
  struct CommunicatorHandle {
    Communicator comm;
    ~CommunicatorHandle() {
      // ~Communicator waits for all calls. If the program still owns the communicator, only the reference is dropped,
      // so that this destructor does not wait for other calls of the program.
      if (comm.state_.use_count() > 1) comm.state_.reset();
    }
  } handle;
  Communicator& comm = handle.comm;
  const Device device;
  const GradientOptions options;
  const flow::GradientReduction reduction;
  flow::ParameterList parameters;
  const int exceptions = std::uncaught_exceptions();  // in flight when this object was made

  // Set by seal().
  flow::GradientLayout layout;
  SharedBuffer memory, scratch;
  std::optional<flow::GradientStep> step;
  std::optional<flow::GradientClock> clock;
  std::optional<flow::GradientNorm> norm;
  std::optional<flow::GradientPlanner> planner;  // BucketRule::kPlanned only
  BucketPlan plan;

  struct Counts {
    std::uint64_t plans = 0, steps = 0;
    int paused = 0;         // number of NoSync objects
    bool captured = false;  // this step becomes a Plan: nothing of it runs
    bool clipped = false;   // clip_norm() was called in this step
  } count;
};

Gradients::State::State(Communicator communicator, const Device& on, GradientOptions asked)
    : handle{std::move(communicator)},
      device(on),
      options(std::move(asked)),
      reduction(options.compression, options.hook) {}

Gradients::State::~State() {
  if (!step) return;
  // If the object is destroyed in the middle of a step or by an exception, the other ranks would wait for calls that
  // this rank never makes.
  const bool gives_up =
      std::uncaught_exceptions() > exceptions || (!step->ended() && !count.captured && count.paused == 0);
  const auto notify_others = [&](ErrorCode code, const std::string& what) {
    if (!comm.error()) comm.fail(code, fmt::format("gradients, rank {} of {}: {}", comm.rank(), comm.nranks(), what));
  };
  if (gives_up) notify_others(ErrorCode::kAborted, fmt::format("it gave up in step {}", count.steps));
  try {
    step->stream().sync();
  } catch (const Error& error) {  // a destructor cannot throw it; streams that wait for this one fail with it
    notify_others(error.code(), error.what());
  }
  if (has_gpu_rank_beside()) retire_memory();
}

// Whether another rank of the communicator is in this process, on a GPU.
bool Gradients::State::has_gpu_rank_beside() const {
  if (!flow::on_gpu(device)) return false;
  const std::vector<transport::Placement>& places = comm.state_->bootstrap.placements();
  const auto own = static_cast<std::size_t>(comm.rank());
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (rank != own && same_process(places[rank], places[own])) return true;
  }
  return false;
}

void Gradients::State::retire_memory() {
  Retired& kept = retired();
  const base::LockGuard lock(kept.mutex);
  kept.memory.push_back(std::move(memory.buffer()));
  if (scratch.bytes() > 0) kept.memory.push_back(std::move(scratch.buffer()));
  if (norm) norm->release_memory(kept.memory);
  if (planner) planner->release_memory(kept.memory);
}

void Gradients::State::require_sealed(const char* call, Here here) const {
  if (!sealed()) base::fail(ErrorCode::kNotReady, here, "gradients: {} before seal()", call);
}

std::uint32_t Gradients::State::index_of(ParameterId parameter, const char* call, Here here) const {
  require_sealed(call, here);
  const auto index = static_cast<std::uint32_t>(parameter);
  if (index >= parameters.size())
    base::fail(ErrorCode::kInvalidValue, here, "gradients: {} of parameter {}, and there are {}", call, index,
               parameters.size());
  return index;
}

void Gradients::State::seal(Here here) {
  if (sealed()) throw Error(ErrorCode::kInvalidValue, "gradients: sealed already", here);
  // On a GPU all streams are opened, and all kernels loaded, before the first call.
  Stream stream = device.stream(StreamFlags::kNonBlocking, device.info().max_priority, here);
  std::optional<Stream> norm_stream;
  if (options.norm) norm_stream.emplace(device.stream(StreamFlags::kNonBlocking, 0, here));
  if (flow::on_gpu(device)) flow::cuda::load_kernels();
  flow::require_same(parameters, options, comm, device, stream, here);
  if (parameters.size() == 0) throw Error(ErrorCode::kInvalidValue, "gradients: no parameters", here);
  std::vector<std::uint32_t> order(parameters.size());
  std::iota(order.rbegin(), order.rend(), 0U);  // the backward pass runs in the reverse order of the forward pass
  layout = flow::GradientLayout(parameters, order);
  const bool planned = options.buckets == BucketRule::kPlanned;
  ReduceCost cost = options.cost;
  if (planned && !cost.known()) cost = flow::measure_reduction(reduction, comm, device, stream, layout.bytes(), here);
  free_retired();
  set_memory(stream, here);
  step.emplace(comm, std::move(stream), parameters, reduction);
  clock.emplace(parameters.size());
  if (options.norm) norm.emplace(device, std::move(*norm_stream), parameters, here);
  if (planned) {
    const flow::GradientPlanner::Options planning{.slices = !reduction.is_hook(), .check_every = options.check_every};
    planner.emplace(comm, device, parameters.size(), std::move(cost), planning, here);
  }
  const GradientProfile sizes = layout.profile();
  adopt(options.buckets == BucketRule::kEach ? bucket_per_gradient(sizes) : ddp_buckets(sizes, options.ddp), here);
  flow::meet_on_gpu(comm, device, here);
}

// Fills the gradients with zeros, because a program may accumulate into them from the first step on.
void Gradients::State::set_memory(StreamRef stream, Here here) {
  memory = comm.allocate(layout.bytes(), "gradients", here);
  if (reduction.needs_scratch() && scratch.bytes() == 0)
    scratch = comm.allocate(layout.bytes(), "gradients: scratch", here);
  stream.fill(memory, 0, "gradients", here);
  stream.sync(here);
}

// Moves the gradients, with their values, to new memory that has this order of parameters.
void Gradients::State::lay_out_anew(const std::vector<std::uint32_t>& order, Here here) {
  flow::GradientLayout next(parameters, order);
  if (next.order() == layout.order()) return;
  device.sync(here);
  {
    const SharedBuffer before = std::move(memory);
    const flow::GradientLayout old = std::exchange(layout, std::move(next));
    const StreamRef stream = step->stream();
    set_memory(stream, here);
    for (std::uint32_t i = 0; i < parameters.size(); ++i) {
      const std::uint64_t bytes = parameters[i].bytes;
      stream.copy(memory.slice(layout.first(i), bytes), before.slice(old.first(i), bytes), "gradients", here);
    }
    stream.sync(here);
  }
  flow::meet_on_gpu(comm, device, here);  // returns when all ranks have freed their old memory
}

void Gradients::State::adopt(BucketPlan next, Here here) {
  plan = std::move(next);
  step->adopt(layout, plan, memory, scratch.bytes() > 0 ? Range(scratch) : Range{});
  if (options.measure || planner) clock->prepare(plan.buckets.size(), step->stream(), here);
  ++count.plans;
}

// Called after each step. Until a step is recorded, the plan stays that of ddp_buckets().
void Gradients::State::plan_next(Here here) {
  const flow::GradientPlanner::PlannedStep ended{count.steps, *step, *clock, layout, plan};
  BucketPlan next;
  if (count.steps > 1) {
    if (planner->check(ended, next, here)) adopt(std::move(next), here);
    return;
  }
  const std::optional<std::vector<std::uint32_t>> order = planner->order_of_arrival(ended, here);
  if (!order) return;
  lay_out_anew(*order, here);
  if (planner->first_plan(layout, step->stream(), next, here)) adopt(std::move(next), here);
}

void Gradients::State::begin_if_ended(StreamRef stream) {
  if (!step->ended()) return;
  count.captured = stream.capturing();
  count.clipped = false;
  const bool wanted = options.measure || (planner && planner->wants_recording(count.steps));
  clock->begin_step(wanted && count.paused == 0 && !count.captured, step->calls(), count.steps, count.plans);
  step->begin();
}

void Gradients::State::note_ready(std::uint32_t parameter, StreamRef stream, const char* call, Here here) {
  if (step->is_ready(parameter))
    fail(ErrorCode::kInvalidValue, here, "{} twice in step {} for parameter {}", call, count.steps,
         parameters[parameter].text());
  begin_if_ended(stream);
  if (count.paused > 0) return step->note(parameter);
  const std::uint32_t before = step->made();
  try {
    step->ready(parameter, stream, *clock, here);
    if (norm) norm->follow(*step, before, step->made(), here);
  } catch (const std::exception& error) {
    if (comm.error()) throw;  // every rank has this error already
    const auto* const own = dynamic_cast<const Error*>(&error);
    fail(own ? own->code() : ErrorCode::kLaunchFailed, here, "{} in step {} for parameter {}: {} of {} failed: {}",
         call, count.steps, parameters[parameter].text(), reduction.is_hook() ? "the hook" : "the reduction",
         step->text_of(step->made()), error.what());
  }
}

void Gradients::State::end_step(Here here) {
  require_sealed("step_end()", here);
  if (step->ended())
    fail(ErrorCode::kInvalidValue, here,
         "step {} ends without any gradient; the first that is missing is that of parameter {}", count.steps,
         parameters[0].text());
  const std::uint32_t missing = step->first_missing();
  if (missing < parameters.size())
    fail(ErrorCode::kInvalidValue, here, "step {} ends and parameter {} had neither ready() nor absent()", count.steps,
         parameters[missing].text());
  step->end();
  if (count.paused > 0) return;
  if (norm && !count.clipped)
    fail(ErrorCode::kInvalidValue, here, "step {} ends without clip_norm(), which options.norm promised", count.steps);
  if (count.captured) return;
  ++count.steps;
  if (planner) plan_next(here);
}

Gradients::Gradients(Communicator& comm, const Device& device, GradientOptions options, Here here) {
  if (options.check_every < 0)
    base::fail(ErrorCode::kInvalidValue, here, "gradients: check_every is {}: it must not be negative",
               options.check_every);
  if (options.hook && options.compression != Compression::kNone)
    throw Error(ErrorCode::kInvalidValue, "gradients: a hook takes the place of compression; ask for one of them",
                here);
  state_ = std::make_unique<State>(Communicator(comm.state_), device, std::move(options));
}
Gradients::Gradients(Gradients&&) noexcept = default;
Gradients& Gradients::operator=(Gradients&&) noexcept = default;
Gradients::~Gradients() = default;

ParameterId Gradients::add(std::string_view name, std::uint64_t bytes, DataType type, Here here) {
  if (state_->sealed())
    base::fail(ErrorCode::kInvalidValue, here, "gradients: parameter '{}' comes after seal()", name);
  try {
    return ParameterId{state_->parameters.add(name, bytes, type, here)};
  } catch (const Error& error) {
    state_->fail(error.code(), here, "{}", error.what());
  }
}

void Gradients::seal(Here here) { state_->seal(here); }

Range Gradients::view(ParameterId parameter, Here here) const {
  return state_->step->view(state_->index_of(parameter, "view()", here));
}

void Gradients::ready(ParameterId parameter, StreamRef stream, Here here) {
  state_->note_ready(state_->index_of(parameter, "ready()", here), stream, "ready()", here);
}

void Gradients::absent(ParameterId parameter, StreamRef stream, Here here) {
  const std::uint32_t index = state_->index_of(parameter, "absent()", here);
  if (state_->count.paused == 0) stream.fill(state_->step->view(index), 0, {}, here);
  state_->note_ready(index, stream, "absent()", here);
}

void Gradients::wait(ParameterId parameter, StreamRef stream, Here here) {
  const std::uint32_t index = state_->index_of(parameter, "wait()", here);
  flow::GradientStep& step = *state_->step;
  if (state_->count.paused > 0) return;
  const std::uint32_t call = step.last_call(index);
  if (!step.is_made(call))
    base::fail(ErrorCode::kNotReady, here,
               "gradients, rank {} of {}: wait() for parameter {}, whose reduction waits for that of {}",
               state_->comm.rank(), state_->comm.nranks(), state_->parameters[index].text(), step.missing(call));
  flow::GradientClock& clock = *state_->clock;
  if (clock.records()) clock.reached(index, call, stream, here);
  step.await(call, stream, here);
  if (clock.records()) clock.left(stream, here);
}

// Returns false in a step that is not reduced; throws if clip_norm() is not possible now.
bool Gradients::State::can_clip(double max_norm, Here here) const {
  require_sealed("clip_norm()", here);
  if (!norm) throw Error(ErrorCode::kInvalidValue, "gradients: clip_norm() without options.norm", here);
  if (!(max_norm > 0))
    base::fail(ErrorCode::kInvalidValue, here, "gradients: clip_norm() with max_norm {}: it must be positive",
               max_norm);
  if (count.paused > 0) return false;
  if (step->ended())
    throw Error(ErrorCode::kNotReady, "gradients: clip_norm() waits for the gradients of a step, and none has begun",
                here);
  const auto last = static_cast<std::uint32_t>(step->calls() - 1);
  if (!step->is_made(last))
    base::fail(ErrorCode::kNotReady, here, "gradients: clip_norm() waits for parameter {}", step->missing(last));
  return true;
}

void Gradients::clip_norm(double max_norm, StreamRef stream, Here here) {
  State& state = *state_;
  if (!state.can_clip(max_norm, here)) return;
  const Range total = state.norm->own_total();
  state.norm->await(*state.step, stream, *state.clock, here);
  state.norm->total(total, flow::GradientNorm::Total::kSet, 1, stream, here);
  state.norm->scale(total, max_norm, *state.step, stream, here);
  state.count.clipped = true;
}

// Ranks with the same gradients count once: each of n such ranks adds 1/n of its total.
void Gradients::clip_norm(std::span<Gradients* const> sets, Communicator& all, double max_norm, StreamRef stream,
                          Here here) {
  if (sets.empty()) throw Error(ErrorCode::kInvalidValue, "gradients: clip_norm() of none", here);
  std::size_t can = 0;
  for (const Gradients* const set : sets) can += set->state_->can_clip(max_norm, here) ? 1 : 0;
  if (can == 0) return;
  if (can < sets.size())
    throw Error(ErrorCode::kInvalidValue,
                "gradients: clip_norm() of some that are reduced in this step and some that are not", here);
  const Range total = sets.front()->state_->norm->own_total();
  for (Gradients* const set : sets) set->state_->norm->await(*set->state_->step, stream, *set->state_->clock, here);
  for (Gradients* const set : sets)
    set->state_->norm->total(total,
                             set == sets.front() ? flow::GradientNorm::Total::kSet : flow::GradientNorm::Total::kAdd,
                             1.0 / set->state_->comm.nranks(), stream, here);
  all.all_reduce(total, total, DataType::kF64, ReduceOp::kSum, stream, here);
  for (Gradients* const set : sets) {
    set->state_->norm->scale(total, max_norm, *set->state_->step, stream, here);
    set->state_->count.clipped = true;
  }
}

Range Gradients::norm() const { return state_->norm ? state_->norm->norm() : Range{}; }
void Gradients::step_end(Here here) { state_->end_step(here); }
std::uint64_t Gradients::steps() const { return state_->count.steps; }
const BucketPlan& Gradients::plan() const { return state_->plan; }
std::uint64_t Gradients::plans() const { return state_->count.plans; }
const ReduceCost& Gradients::cost() const { return state_->planner ? state_->planner->cost() : state_->options.cost; }
const GradientProfile& Gradients::profile() const {
  static const GradientProfile kNone;
  return state_->planner ? state_->planner->profile() : kNone;
}

std::optional<GradientReport> Gradients::report() const {
  if (!state_->sealed()) return std::nullopt;
  const flow::GradientClock& clock = *state_->clock;
  flow::GradientTimes times;
  // Prefers the previous step: its length is known, because the current step follows it. If it was not reduced, it is
  // not recorded.
  for (const std::uint64_t ago : {std::uint64_t{1}, clock.last_recorded(), clock.recorded_before()}) {
    const bool unfinished = ago == 0 && !state_->step->ended();
    if (unfinished || !clock.look(ago, times) || times.plan != state_->count.plans) continue;
    GradientReport report = flow::report_of(
        times, [&](std::uint32_t parameter) { return state_->step->calls_of(parameter); }, state_->plan, cost());
    for (std::uint32_t call = 0; call < report.buckets.size(); ++call)
      report.buckets[call].gradients = state_->step->text_of(call, flow::GradientStep::Detail::kName);
    report.step = times.step;
    return report;
  }
  return std::nullopt;
}

Gradients::NoSync::NoSync(Gradients& gradients) : gradients_(gradients) { ++gradients_.state_->count.paused; }
Gradients::NoSync::~NoSync() { --gradients_.state_->count.paused; }

}  // namespace slip
