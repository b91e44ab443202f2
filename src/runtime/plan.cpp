#include "slip/plan.hpp"

#include <algorithm>

#include "base/fail.hpp"
#include "base/stream_text.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"
#include "slip/stream.hpp"

namespace slip {

// What launches of a plan share: the streams of forked branches, which the first launch opens, the end of the previous
// launch, and the compiled plan. One launch at a time runs (rule 100).
struct Plan::Launches {
  struct ForkedStream {
    std::shared_ptr<runtime::DeviceCore> core;
    runtime::StreamState* stream = nullptr;
  };
  base::Mutex mutex;
  // Devices and names of the captured streams; empty for plans built by hand, which use the launching device.
  std::vector<std::weak_ptr<runtime::DeviceCore>> devices;
  std::vector<Name> names;
  std::vector<ForkedStream> forked SLIP_GUARDED_BY(mutex);  // by number of the stream; entry 0, the origin, stays empty
  StreamPoint last SLIP_GUARDED_BY(mutex);                  // the end of the previous launch
  // The id of the stream of `last`, which may be closed by now.
  std::uint64_t last_stream SLIP_GUARDED_BY(mutex) = 0;

  // The plan as compiled by a device that compiles plans, and the id of that device.
  std::shared_ptr<void> compiled SLIP_GUARDED_BY(mutex);
  std::uint32_t compiled_by SLIP_GUARDED_BY(mutex) = 0;
  bool compiled_with_bindings SLIP_GUARDED_BY(mutex) = false;
  bool last_was_compiled SLIP_GUARDED_BY(mutex) = false;  // the previous launch was one of `compiled`

  std::vector<runtime::StreamState*> open(runtime::StreamState& main, std::uint32_t count, Here here)
      SLIP_REQUIRES(mutex);
  bool compiles_for(const runtime::StreamState& main) const SLIP_REQUIRES(mutex);
  void forget_failure() SLIP_REQUIRES(mutex);
  void wait_for_last(runtime::StreamState& main, Here here) const SLIP_REQUIRES(mutex);

  ~Launches() {
    for (const ForkedStream& each : forked) {
      if (each.stream) runtime::close_stream(*each.stream);
    }
  }
};

// The streams of a launch in `main`.
std::vector<runtime::StreamState*> Plan::Launches::open(runtime::StreamState& main, std::uint32_t count, Here here) {
  forked.resize(count);
  std::vector<runtime::StreamState*> streams(count, &main);
  for (std::uint32_t i = 1; i < count; ++i) {
    ForkedStream& own = forked[i];
    const std::shared_ptr<runtime::DeviceCore> core =
        i < devices.size() ? devices[i].lock() : main.core->shared_from_this();
    if (!core)
      base::fail(ErrorCode::kInvalidDevice, here, "the device of the plan's {} was closed",
                 base::stream_text(i, i < names.size() ? names[i].text() : std::string_view()));
    if (!own.stream || own.core != core || own.stream->failure.set()) {
      if (own.stream) runtime::close_stream(*own.stream);
      own = {core, runtime::open_stream(*core, {.flags = StreamFlags::kNonBlocking,
                                                .priority = main.priority,
                                                .name = i < names.size() ? names[i] : Name()})};
    }
    streams[i] = own.stream;
  }
  return streams;
}

// Returns whether the device of `main` can compile this plan: it compiles plans, and all streams of the plan are on it.
bool Plan::Launches::compiles_for(const runtime::StreamState& main) const {
  return main.compiles_plans() &&
         std::ranges::all_of(devices, [&main](const auto& device) { return device.lock().get() == main.core; });
}

// The host waits for a launch that failed, because a wait for it in a stream would make the next launch fail, too.
void Plan::Launches::forget_failure() {
  if (!last.stream || !last.stream->failure.set()) return;
  if (runtime::DeviceCore* core = last.stream->core) core->backend->wait(last.stream, last.position, 0);
  last = {};
}

Plan::Plan() : launches_(std::make_unique<Launches>()) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

namespace {

constexpr std::uint32_t kMaxStreams = 4096;
const Name kPlanName("plan"), kLaunchName("launch edge");

// Returns what an op of this kind needs and the node lacks; null: nothing. Records and waits are not ops of a plan:
// `waits` express them.
const char* lacks(const PlanNode& node) {
  const auto lists = [&](std::size_t reads, std::size_t writes) {
    return node.reads.size() == reads && node.writes.size() == writes;
  };
  const auto unless = [](bool good, const char* needed) { return good ? nullptr : needed; };
  switch (node.kind) {
    case OpKind::kKernel: return unless(node.kernel, "needs a kernel");
    case OpKind::kCopy:
      return unless(lists(1, 1) && node.reads[0].bytes == node.writes[0].bytes, "needs two ranges of the same size");
    case OpKind::kFill: return unless(lists(0, 1), "needs one range that it writes");
    case OpKind::kHost: return unless(node.host != nullptr, "needs a function");
    case OpKind::kWaitValue:
      return unless(lists(1, 0) && node.reads[0].bytes == sizeof(std::uint32_t), "needs one range of 4 bytes to read");
    case OpKind::kWriteValue:
      return unless(lists(0, 1) && node.writes[0].bytes == sizeof(std::uint32_t),
                    "needs one range of 4 bytes to write");
    case OpKind::kExchange: return unless(node.exchange != nullptr, "needs a call of a communicator");
    default: return "cannot be an op of a plan";
  }
}

void require_node(const PlanNode& node) {
  if (node.stream >= kMaxStreams)
    base::fail(ErrorCode::kInvalidValue, node.here, "plan op '{}': stream {} is not below {}", node.name.text(),
               node.stream, kMaxStreams);
  if (const char* needed = lacks(node))
    base::fail(ErrorCode::kInvalidValue, node.here, "plan op '{}': a {} {}; it reads {} and writes {} ranges",
               node.name.text(), op_kind_name(node.kind), needed, node.reads.size(), node.writes.size());
}

// The ranges of an op, with the buffers of this launch instead of the captured ones.
template <class BufferBindings>
std::vector<Range> bound_ranges(const std::vector<Range>& planned, const BufferBindings& bindings, Name op, Here here) {
  std::vector<Range> result = planned;
  for (Range& range : result) {
    for (const auto& binding : bindings) {
      if (range.id != binding.planned.id || range.offset < binding.planned.offset) continue;
      const std::size_t offset = range.offset - binding.planned.offset;
      if (offset + range.bytes > binding.planned.bytes) continue;
      if (offset + range.bytes > binding.actual.bytes)
        base::fail(ErrorCode::kInvalidValue, here,
                   "op '{}' of the plan uses bytes {} to {} of a buffer; its replacement has {}", op.text(), offset,
                   offset + range.bytes, binding.actual.bytes);
      range = binding.actual.slice(offset, range.bytes);
      break;
    }
    runtime::require_range(range, "plan", here);
  }
  return result;
}

// Makes the checks of the calls that issue such ops, because bindings and plans built by hand have not passed them.
void require_operands(runtime::DeviceCore& core, const PlanNode& node, const std::vector<Range>& reads,
                      const std::vector<Range>& writes) {
  switch (node.kind) {
    case OpKind::kKernel:
    case OpKind::kExchange:
      for (const Range& range : reads) runtime::require_kernel_range(core, range, node.name, node.here);
      for (const Range& range : writes) runtime::require_kernel_range(core, range, node.name, node.here);
      if (node.exchange) node.exchange->require(core, reads, writes, node.here);
      break;
    case OpKind::kCopy: runtime::require_copy(writes[0], reads[0], node.here); break;
    case OpKind::kWaitValue: runtime::require_flag(reads[0], "wait_value", node.here); break;
    case OpKind::kWriteValue: runtime::require_flag(writes[0], "write_value", node.here); break;
    default: break;
  }
}

}  // namespace

std::uint32_t Plan::add(PlanNode node) {
  require_node(node);
  for (const std::uint32_t before : node.waits) {
    if (before >= nodes_.size())
      base::fail(ErrorCode::kInvalidValue, node.here, "plan op {} waits for op {}, which comes later", nodes_.size(),
                 before);
  }
  streams_ = std::max(streams_, node.stream + 1);
  nodes_.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

Name Plan::stream_name(std::uint32_t stream) const {
  return launches_ && stream < launches_->names.size() ? launches_->names[stream] : Name();
}

std::string Plan::describe() const {
  std::vector<std::string> streams;  // as shown; padded only if there are names, because numbers hardly differ in width
  std::size_t width = 0;
  for (std::uint32_t i = 0; i < streams_; ++i) {
    const Name name = stream_name(i);
    streams.push_back(base::stream_text(i, name.text()));
    if (name) width = std::max(width, streams.back().size());
  }
  std::string text = fmt::format("plan: {} ops in {} streams\n", nodes_.size(), streams_);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const PlanNode& node = nodes_[i];
    text += fmt::format("{:>5}  {:<{}}  {:<8} {}", i, streams[node.stream], width, engine_name(node.engine),
                        node.name.text());
    if (!node.waits.empty()) text += fmt::format("  after {}", fmt::join(node.waits, ", "));
    text += '\n';
  }
  return text;
}

Bindings& Bindings::buffer(Range planned, Range actual) {
  buffers_.push_back({planned, actual});
  return *this;
}

Bindings& Bindings::scalar(Name op, std::size_t index, Scalar value) {
  scalars_.push_back({op, index, value});
  return *this;
}

// One launch: its streams, and the ranges and scalars of each op after binding.
struct Plan::Bound {
  std::vector<runtime::StreamState*> streams;
  std::vector<std::vector<Range>> reads, writes;
  std::vector<std::vector<Scalar>> scalars;
  std::vector<std::function<void()>> hosts;

  Op op(const PlanNode& node, std::size_t i) {
    hosts[i] = node.host;  // a copy, because submission moves from it
    return {.kind = node.kind,
            .engine = node.engine,
            .opaque = node.opaque,
            .value = node.value,
            .kernel = node.kernel,
            .name = node.name,
            .here = node.here,
            .reads = reads[i],
            .writes = writes[i],
            .scalars = scalars[i],
            .cost = node.cost,
            .host = &hosts[i]};
  }
};

// All checks come before the first op, so that a launch issues all ops or none.
Plan::Bound Plan::bind(runtime::StreamState& main, const Bindings* bindings, Here here)
    SLIP_REQUIRES(launches_->mutex) {
  static const Bindings kNone;
  const Bindings& use = bindings ? *bindings : kNone;
  Bound bound;
  bound.streams = launches_->open(main, streams_, here);
  bound.hosts.resize(nodes_.size());
  for (const PlanNode& node : nodes_) {
    bound.reads.push_back(bound_ranges(node.reads, use.buffers_, node.name, here));
    bound.writes.push_back(bound_ranges(node.writes, use.buffers_, node.name, here));
    require_operands(*bound.streams[node.stream]->core, node, bound.reads.back(), bound.writes.back());
    std::vector<Scalar>& scalars = bound.scalars.emplace_back(node.scalars);
    for (const auto& binding : use.scalars_) {
      if (binding.op == node.name && binding.index < scalars.size()) scalars[binding.index] = binding.value;
    }
  }
  return bound;
}

void Plan::run(StreamRef origin, const Bindings* bindings, Here here) {
  runtime::StreamState& main = *origin.state(here);
  if (main.capture.load(std::memory_order_acquire))
    throw Error(ErrorCode::kCaptureUnsupported, "a plan cannot be launched while its stream captures", here);
  if (!launches_) throw Error(ErrorCode::kInvalidHandle, "the plan was moved from", here);
  const base::LockGuard lock(launches_->mutex);
  runtime::require_stream(main, here);
  // Observers must see each op, so with an observer the compiled plan is not used.
  // An exchange is enqueued anew by each launch, because each is another call of its communicator.
  const bool exchanges = std::ranges::any_of(nodes_, [](const PlanNode& node) { return node.exchange != nullptr; });
  if (!exchanges && launches_->compiles_for(main) && !runtime::observed() && run_compiled(main, bindings, here)) return;
  run_op_by_op(main, bind(main, bindings, here), here);
}

// Launches the plan as one op. The first launch compiles it, and later launches compile it again if bindings change it.
// Returns false if another thread disturbed the compilation, for instance by cudaDeviceSynchronize; then nothing was
// launched.
bool Plan::run_compiled(runtime::StreamState& main, const Bindings* bindings, Here here)
    SLIP_REQUIRES(launches_->mutex) {
  runtime::PlanOps ops{.nodes = {}, .streams = streams_, .compiled = &launches_->compiled};
  const bool is_other_device = launches_->compiled_by != main.core->id;
  Bound bound;
  std::vector<runtime::PlanOps::Node> nodes;
  if (!launches_->compiled || is_other_device || bindings || launches_->compiled_with_bindings) {
    bound = bind(main, bindings, here);
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      nodes.push_back({bound.op(nodes_[i], i), nodes_[i].stream, nodes_[i].waits});
    ops.nodes = nodes;
    launches_->compiled_by = main.core->id;
    launches_->compiled_with_bindings = bindings != nullptr;
    launches_->last_was_compiled = false;
  } else {
    for (const PlanNode& node : nodes_) {  // the memory must still be allocated
      for (const Range& range : node.reads) runtime::require_range(range, "plan", here);
      for (const Range& range : node.writes) runtime::require_range(range, "plan", here);
    }
  }
  if (nodes_.empty()) return true;
  // The driver orders launches of one compiled plan, but not those of another compilation or of single ops (rule 100).
  launches_->forget_failure();
  if (!launches_->last_was_compiled) launches_->wait_for_last(main, here);
  try {
    const std::uint64_t position = runtime::issue(
        main, {.kind = OpKind::kPlan, .engine = Engine::kCompute, .name = kPlanName, .here = here, .plan = &ops});
    launches_->last = {&main, position};
    launches_->last_stream = main.last_id;
    launches_->last_was_compiled = true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kCaptureInvalidated && error.code() != ErrorCode::kCaptureUnsupported) throw;
    return false;
  }
  return true;
}

// Rule 100: a launch waits for the previous one. If this stream reuses the stream state of the previous launch, no wait
// is needed. But observers identify streams by their ids, so they get the edge as a record.
void Plan::Launches::wait_for_last(runtime::StreamState& main, Here here) const {
  if (!last.stream || last_stream == main.last_id) return;
  if (last.stream != &main) {
    runtime::enqueue(
        main, {.kind = OpKind::kWait, .launch_edge = true, .here = here, .point = last, .point_stream = last_stream});
  } else if (runtime::observed_by(main.audience)) {
    runtime::notify_barrier(main, 0, last, last_stream, kLaunchName, here);
  }
}

// An op of the plan may fail while later ones are being issued. The failure reaches the origin stream through the
// waits, so ops are enqueued without checks.
void Plan::run_op_by_op(runtime::StreamState& main, Bound bound, Here here) SLIP_REQUIRES(launches_->mutex) {
  if (nodes_.empty()) return;  // an empty plan is no barrier in the legacy stream (rule 8)
  // A launch behaves as one op of its stream. The waits that ensure this are implicit.
  const auto wait = [](runtime::StreamState& stream, StreamPoint point, bool launch_edge, Here place) {
    if (point.stream && point.stream != &stream)
      runtime::enqueue(stream, {.kind = OpKind::kWait, .launch_edge = launch_edge, .here = place, .point = point});
  };
  const auto end_of = [here](runtime::StreamState& stream) {
    return StreamPoint{&stream, runtime::enqueue(stream, {.kind = OpKind::kRecord, .here = here})};
  };
  launches_->forget_failure();
  launches_->wait_for_last(main, here);
  const StreamPoint begin = end_of(main);
  for (std::uint32_t i = 1; i < streams_; ++i) wait(*bound.streams[i], begin, true, here);

  // On a CUDA device a wait for a point waits for an event recorded at or after it. An op that another stream waits for
  // gets a record of its own, right behind it. Otherwise that wait would cover later ops of the stream, too.
  std::vector<bool> marked(nodes_.size());
  for (const PlanNode& node : nodes_) {
    for (const std::uint32_t before : node.waits) {
      if (main.core->native && nodes_[before].stream != node.stream) marked[before] = true;
    }
  }
  std::vector<StreamPoint> ends(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const PlanNode& node = nodes_[i];
    runtime::StreamState& stream = *bound.streams[node.stream];
    for (const std::uint32_t before : node.waits) wait(stream, ends[before], false, node.here);
    const Op op = bound.op(node, i);
    ends[i] = {&stream, node.exchange ? node.exchange->enqueue(stream, op) : runtime::enqueue(stream, op)};
    if (marked[i]) ends[i] = end_of(stream);
  }
  for (std::uint32_t i = 1; i < streams_; ++i) wait(main, end_of(*bound.streams[i]), true, here);
  launches_->last = end_of(main);
  launches_->last_stream = main.last_id;
  launches_->last_was_compiled = false;
  if (main.core->options.launch_blocking) runtime::wait_for(*main.core, &main, launches_->last.position, 0, here);
}

Plan StreamRef::end_capture(Here here) const {
  runtime::Capture::Result result = runtime::Capture::end(*state(here), here);
  Plan plan;
  plan.nodes_ = std::move(result.nodes);
  plan.streams_ = static_cast<std::uint32_t>(result.streams.size());
  for (const runtime::Capture::CapturedStream& stream : result.streams) {
    plan.launches_->devices.push_back(stream.device->weak_from_this());
    plan.launches_->names.push_back(stream.name);
  }
  return plan;
}

void StreamRef::launch(Plan& plan, Here here) const { plan.run(*this, nullptr, here); }
void StreamRef::launch(Plan& plan, const Bindings& bindings, Here here) const { plan.run(*this, &bindings, here); }

}  // namespace slip
