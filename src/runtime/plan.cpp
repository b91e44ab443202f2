#include "slip/plan.hpp"

#include <fmt/format.h>

#include <mutex>

#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "slip/stream.hpp"

namespace slip {

// The streams that forked branches run on, made at the first launch and kept. One launch at a time (rule 100).
struct Plan::Launches {
  struct Side {
    std::shared_ptr<DeviceCore> core;
    StreamState* stream = nullptr;
  };
  std::mutex mutex;
  std::vector<DeviceCore*> devices;  // of the captured streams; empty for plans built by hand: the launching device
  std::vector<Side> sides;           // index 0, the origin, stays empty
  Point last;                        // the end of the launch before

  ~Launches() {
    for (const Side& side : sides) {
      if (side.stream) close_stream(*side.stream);
    }
  }
};

Plan::Plan() : launches_(std::make_unique<Launches>()) {}
Plan::Plan(Plan&&) noexcept = default;
Plan& Plan::operator=(Plan&&) noexcept = default;
Plan::~Plan() = default;

std::uint32_t Plan::add(PlanNode node) {
  for (const std::uint32_t before : node.waits) {
    if (before >= nodes_.size())
      throw Error(Code::kInvalidValue,
                  fmt::format("plan op {} waits for op {}, which comes later", nodes_.size(), before), node.here);
  }
  streams_ = std::max(streams_, node.stream + 1);
  nodes_.push_back(std::move(node));
  return static_cast<std::uint32_t>(nodes_.size() - 1);
}

std::string Plan::describe() const {
  std::string text = fmt::format("plan: {} ops in {} streams\n", nodes_.size(), streams_);
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const PlanNode& node = nodes_[i];
    text += fmt::format("{:>5}  stream {}  {:<8} {}", i, node.stream, engine_name(node.engine), node.name.text());
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

namespace {

// The ranges of an op with the launch's buffers in place of the planned ones.
template <class BufferBindings>
std::vector<Range> bound_ranges(const std::vector<Range>& planned, const BufferBindings& bindings, Here here) {
  std::vector<Range> result = planned;
  for (Range& range : result) {
    for (const auto& binding : bindings) {
      if (range.id != binding.planned.id || range.offset < binding.planned.offset) continue;
      const std::size_t offset = range.offset - binding.planned.offset;
      if (offset + range.bytes > binding.planned.bytes) continue;
      range = binding.actual.slice(offset, range.bytes);
      break;
    }
    require_range(range, "plan", here);
  }
  return result;
}

}  // namespace

void Plan::run(StreamRef origin, const Bindings* bindings, Here here) {
  static const Bindings kNone;
  const Bindings& use = bindings ? *bindings : kNone;
  StreamState& main = *origin.state(here);
  if (main.capture.load(std::memory_order_acquire))
    throw Error(Code::kCaptureUnsupported, "a plan cannot be launched while its stream captures", here);
  Launches& launches = *launches_;
  const std::lock_guard lock(launches.mutex);
  launches.sides.resize(streams_);
  std::vector<StreamState*> streams(streams_, &main);
  for (std::uint32_t i = 1; i < streams_; ++i) {
    Launches::Side& side = launches.sides[i];
    if (!side.stream) {
      DeviceCore* core = launches.devices.empty() ? main.core : launches.devices[i];
      side.core = core->shared_from_this();
      side.stream = open_stream(*core, StreamFlags::kNonBlocking, main.priority, false);
    }
    streams[i] = side.stream;
  }
  const auto wait = [here](StreamState& stream, Point point) {
    if (point.stream && point.stream != &stream) issue(stream, {.kind = OpKind::kWait, .here = here, .point = point});
  };
  const auto end_of = [here](StreamState& stream) {
    return Point{&stream, issue(stream, {.kind = OpKind::kRecord, .here = here})};
  };
  wait(main, launches.last);
  const Point begin = end_of(main);
  for (std::uint32_t i = 1; i < streams_; ++i) wait(*streams[i], begin);

  std::vector<Point> ends(nodes_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const PlanNode& node = nodes_[i];
    StreamState& stream = *streams[node.stream];
    for (const std::uint32_t before : node.waits) wait(stream, ends[before]);
    const std::vector<Range> reads = bound_ranges(node.reads, use.buffers_, node.here);
    const std::vector<Range> writes = bound_ranges(node.writes, use.buffers_, node.here);
    std::vector<Scalar> scalars = node.scalars;
    for (const auto& binding : use.scalars_) {
      if (binding.op == node.name && binding.index < scalars.size()) scalars[binding.index] = binding.value;
    }
    std::function<void()> host = node.host;
    ends[i] = {&stream, issue(stream, {.kind = node.kind,
                                       .engine = node.engine,
                                       .opaque = node.opaque,
                                       .value = node.value,
                                       .kernel = node.kernel,
                                       .name = node.name,
                                       .here = node.here,
                                       .reads = reads,
                                       .writes = writes,
                                       .scalars = scalars,
                                       .cost = node.cost,
                                       .host = &host})};
  }
  for (std::uint32_t i = 1; i < streams_; ++i) wait(main, end_of(*streams[i]));
  launches.last = end_of(main);
}

Plan StreamRef::end_capture(Here here) const {
  Capture::Result result = Capture::end(*state(here), here);
  Plan plan;
  plan.nodes_ = std::move(result.nodes);
  plan.streams_ = static_cast<std::uint32_t>(result.stream_devices.size());
  plan.launches_->devices = std::move(result.stream_devices);
  return plan;
}

void StreamRef::launch(Plan& plan, Here here) const { plan.run(*this, nullptr, here); }
void StreamRef::launch(Plan& plan, const Bindings& bindings, Here here) const { plan.run(*this, &bindings, here); }

}  // namespace slip
