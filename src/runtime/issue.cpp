// The path of every op from the public calls to the backend, and of every wait of the host.
#include <utility>

#include "base/thread.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "runtime/pool.hpp"

namespace slip::runtime {

// Rule 98: the legacy stream would depend on captured work, which does not run. The call is refused and the capture is
// invalidated, as on an H200.
[[gnu::noinline]] static void raise_implicit_capture(const StreamState& legacy, Here here) {
  Capture::invalidate_all(*legacy.core, Capture::Reach::kBlocking, "the legacy stream was used during the capture");
  throw Error(ErrorCode::kCaptureImplicit,
              "the legacy stream was used while a blocking stream captures; that capture is invalid now", here);
}

void refuse_implicit_capture(const StreamState& stream, Here here) {
  if (stream.legacy && stream.core->captures.blocking.load(std::memory_order_relaxed) > 0) [[unlikely]]
    raise_implicit_capture(stream, here);
}

namespace {

[[gnu::always_inline]] inline void check_stream(const StreamState& stream, Here here) {
  require_usable(*stream.core, here);
  if (stream.failure.set()) [[unlikely]]
    raise(stream.failure.value(), here);
  refuse_implicit_capture(stream, here);
}

// One Op for each thread and kind. A call only sets the fields that differ from the last call. That is safe, because
// submissions do not nest: kernels and host functions may not call the runtime.
constinit thread_local Op t_record{.kind = OpKind::kRecord}, t_wait{.kind = OpKind::kWait};
const Name kEdgeName("launch edge");  // an edge of a plan launch, or of a copy that is a barrier on two devices

// The record of this thread's current submission until it is reported, and the observers that get it.
constinit thread_local Record* t_submission = nullptr;
constinit thread_local Observer* t_submission_audience = nullptr;

struct Submission : base::NoCopy {
  Submission(Record& record, Observer* audience) {
    t_submission = &record;
    t_submission_audience = audience;
  }
  ~Submission() { t_submission = nullptr; }
};

// With an observer, a submission and its report are one step under a lock. So the observer gets the records of a stream
// in the order of the stream.
[[gnu::noinline]] std::uint64_t submit_observed(StreamState& stream, const Op& op) {
  const base::LockGuard lock(stream.observed);
  Record record{.kind = RecordKind::kSubmit,
                .engine = op.engine,
                .device = stream.core->id,
                .stream = stream.last_id,
                .thread = base::thread_index(),
                .queued = stream.core->backend->now(),
                .op = &op,
                .name = op.name,
                .here = op.here};
  if (op.kind == OpKind::kRecord) {
    record.kind = RecordKind::kEventRecord;
  } else if (op.kind == OpKind::kWait) {
    // Waits with a name are implicit ones of the allocator.
    record.kind = op.name || op.launch_edge ? RecordKind::kBarrier : RecordKind::kEventWait;
    if (op.launch_edge) record.name = kEdgeName;
    record.other_stream = op.point_stream ? op.point_stream : op.point.stream->last_id;
    record.other_position = op.point.position;
  }
  const Submission submission(record, stream.audience);
  const std::uint64_t position = stream.core->backend->submit(stream, op);
  detail::notify_submission(position);
  return position;
}

[[gnu::noinline]] void note_other_devices(const DeviceCore& core, const Op& op) {
  for (const Ranges& ranges : {op.reads, op.writes}) {
    for (const Range& range : ranges) {
      if (range.block->core != &core) note_other_device(*range.block, core);
    }
  }
}

[[gnu::noinline]] void refuse_in_capture(const DeviceCore& core, StreamState* stream, Here here) {
  Capture* capture = stream ? base::load_acquire(stream->capture) : nullptr;
  if (stream) refuse_implicit_capture(*stream, here);
  const bool enclosed = !stream && core.captures.all.load(std::memory_order_relaxed) > 0;
  if (!capture && !enclosed) return;
  if (capture) capture->invalidate("a capturing stream was synchronised or queried");
  else Capture::invalidate_all(core, Capture::Reach::kDevice, "its device was synchronised");
  throw Error(ErrorCode::kCaptureUnsupported, "captured work does not run, so it cannot be waited for (rule 98)", here);
}

inline void require_no_capture(const DeviceCore& core, StreamState* stream, std::uint64_t position, Here here) {
  if (position != kEverything) return;  // a point: its work was issued before the capture
  // Without a capture on the device, no stream of it captures. relaxed: a capture that another thread begins at the
  // same time is a race of the caller.
  if (core.captures.all.load(std::memory_order_relaxed) > 0) [[unlikely]]
    refuse_in_capture(core, stream, here);
}

[[gnu::noinline]] void raise_first(DeviceCore& core, StreamState* stream, std::uint64_t position, Here here) {
  if (core.fault.set()) raise(core.fault.value(), here);
  if (!stream && core.stream_failure.set()) {  // rule 22
    const Failure failure = core.stream_failure.value();
    if (failure.stream == 0) core.stream_failure.clear();  // its stream is already closed: report it once
    raise(failure, here);
  }
  if (!stream || !stream->failure.set()) return;
  const Failure failure = stream->failure.value();
  if (failure.position <= position) raise(failure, here);
}

inline void raise_failure(DeviceCore& core, StreamState* stream, std::uint64_t position, Here here) {
  if (core.fault.set() || (stream ? stream->failure.set() : core.stream_failure.set())) [[unlikely]]
    raise_first(core, stream, position, here);
}

void notify_reached(RecordKind kind, const DeviceCore& core, std::uint64_t id, StreamState* stream,
                    std::uint64_t position, Here here) {
  const StreamState* of = stream ? stream : core.legacy;
  Observer* const audience = of ? of->audience : nullptr;
  if (!observed_by(audience)) return;
  notify({.kind = kind,
          .whole_device = stream == nullptr,
          .device = core.id,
          .other_stream = id       ? id
                          : stream ? stream->last_id
                                   : 0,
          .other_position = position,
          .here = here},
         audience);
}

[[gnu::always_inline]] inline std::uint64_t submit_op(StreamState& stream, const Op& op) {
  // For kernels and exchanges require_kernel_range() has called note_other_device().
  if (op.kind != OpKind::kKernel && op.kind != OpKind::kExchange && op.reads.size() + op.writes.size() > 0)
    note_other_devices(*stream.core, op);
  return observed_by(stream.audience) ? submit_observed(stream, op) : stream.core->backend->submit(stream, op);
}

}  // namespace

void detail::notify_submission(std::uint64_t position) {
  Record* const record = std::exchange(t_submission, nullptr);
  if (!record) return;
  record->position = position;
  notify(*record, t_submission_audience);
}

std::uint64_t enqueue(StreamState& stream, const Op& op) { return submit_op(stream, op); }

void require_stream(const StreamState& stream, Here here) { check_stream(stream, here); }

[[gnu::hot]] std::uint64_t issue_record(StreamState& stream, Here here) {
  expect_exit();
  check_stream(stream, here);
  t_record.here = here;  // a record with no source location is the runtime's own, see is_bookkeeping()
  if (observed_by(stream.audience)) [[unlikely]]
    return submit_observed(stream, t_record);
  return stream.core->backend->submit(stream, t_record);
}

[[gnu::hot]] void issue_wait(StreamState& stream, StreamPoint point, std::uint64_t point_stream, EventState* event,
                             Here here) {
  expect_exit();
  check_stream(stream, here);
  Op& op = t_wait;
  op.here = here;
  op.point = point;
  op.point_stream = point_stream;
  op.event = event;
  if (observed_by(stream.audience)) [[unlikely]]
    submit_observed(stream, op);
  else stream.core->backend->submit(stream, op);
}

[[gnu::hot]] std::uint64_t issue(StreamState& stream, const Op& op) {
  expect_exit();
  check_stream(stream, op.here);
  // relaxed: the thread that begins a capture is ordered before this call, otherwise the program has a race.
  if (Capture* capture = stream.capture.load(std::memory_order_relaxed)) [[unlikely]] {
    capture->add(stream, op);
    return 0;
  }
  const std::uint64_t position = submit_op(stream, op);
  if (stream.core->options.launch_blocking && op.kind <= OpKind::kHost) [[unlikely]]
    wait_for(*stream.core, &stream, position, 0, op.here);
  return position;
}

bool wait_for(DeviceCore& core, StreamState* stream, std::uint64_t position, std::int64_t deadline_ns, Here here,
              std::uint64_t id) {
  require_usable(core, here);
  require_no_capture(core, stream, position, here);
  // An observer must know which ops the wait covers, even if other threads submit meanwhile.
  if (stream && position == kEverything && observed_by(stream->audience)) {
    // Under the lock: otherwise the point could be reported before a submission that it covers.
    const base::LockGuard lock(stream->observed);
    position = core.backend->submit(*stream, {.kind = OpKind::kRecord});
  }
  if (!core.backend->wait(stream, position, deadline_ns)) return false;
  notify_reached(RecordKind::kSync, core, id, stream, position, here);
  if (core.pool) core.pool->trim(core.options.pool.release_threshold);
  raise_failure(core, stream, position, here);
  return true;
}

bool is_reached(DeviceCore& core, StreamState& stream, std::uint64_t position, Here here, std::uint64_t id) {
  require_usable(core, here);
  require_no_capture(core, &stream, position, here);
  if (position == kEverything && observed_by(stream.audience)) {
    // As in wait_for(), but the query comes before the record: the record itself need not be reached.
    const base::LockGuard lock(stream.observed);
    if (!core.backend->reached(stream, kEverything)) return false;
    position = core.backend->submit(stream, {.kind = OpKind::kRecord});
  } else if (!core.backend->reached(stream, position)) {
    return false;
  }
  notify_reached(RecordKind::kQuery, core, id, &stream, position, here);
  raise_failure(core, &stream, position, here);
  return true;
}

}  // namespace slip::runtime
