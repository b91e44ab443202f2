// CudaBackend: submits an op, after the waits that order it behind ops of other streams.
#include <nvtx3/nvToolsExt.h>

#include <optional>
#include <typeinfo>

#include "backend/cuda/cuda_backend.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {
namespace {

// An NVTX range with the op's name around its CUDA calls, for profilers.
class NvtxRange : base::NoCopy {
 public:
  explicit NvtxRange(const Op& op) : open_(kWanted && op.name) {
    if (open_) nvtxRangePushA(op.name.c_str());
  }
  ~NvtxRange() {
    if (open_) nvtxRangePop();
  }

 private:
  static inline const bool kWanted = base::nvtx_wanted();
  const bool open_;
};

// Another thread may have destroyed the stream after the caller's reference was checked. CUDA would take a null handle
// as the default stream.
void require_open(const CudaStream& stream, Here here) SLIP_REQUIRES(stream.submitting) {
  if (!stream.handle) [[unlikely]]
    runtime::raise_destroyed(&stream, stream.last_id, here);
}

// Throws if no event marks the point and `target` captures now, unless `waiting` captures too. An event recorded now
// would belong to the capture, and a stream that waits for it would become part of the capture.
void require_point(CudaStream& target, std::uint64_t position, const CudaStream& waiting, Here here) {
  if (target.known_done(position) || target.mark_at(position)) return;
  {
    const base::LockGuard lock(target.submitting);  // another thread may close the stream
    if (!target.has_handle() || !is_capturing(target.handle)) return;
  }
  if (is_capturing(waiting.handle) || target.known_done(position)) return;
  base::fail(ErrorCode::kCaptureIsolation, here,
             "{} cannot wait for an earlier op of {}, which captures now: record an event in that stream before the "
             "capture begins",
             runtime::stream_text(waiting), runtime::stream_text(target));
}

// Whether RunTimes measures the op. Host functions read the clock themselves.
bool is_timed(OpKind kind) { return kind < OpKind::kHost || kind == OpKind::kPlan || kind == OpKind::kExchange; }

}  // namespace

// Kernels have a short path, whose machine code is contiguous. The driver evicts this code from the instruction cache
// at each launch, so each of its cache lines costs a miss.
[[gnu::hot]] std::uint64_t CudaBackend::submit(runtime::StreamState& state, const Op& op) {
  CudaStream& stream = static_cast<CudaStream&>(state);
  make_current();
  if (op.kind != OpKind::kKernel || runtime::observed() || base::nvtx_wanted() || !stream.stands_alone() ||
      stream.may_end)
    return submit_any(stream, op);
  const base::LockGuard lock(stream.submitting);
  require_open(stream, op.here);
  const std::uint64_t position = stream.submitted.load(std::memory_order_relaxed) + 1;
  stream.recent[position % stream.recent.size()] = {op.name, op.here};
  enqueuer_.launch_kernel(stream.handle, op);
  stream.submitted.store(position, std::memory_order_release);  // as in submit_any(), but the position has no mark
  return position;
}

[[gnu::noinline]] std::uint64_t CudaBackend::submit_any(CudaStream& stream, const Op& op) {
  if (op.kind == OpKind::kWait) {
    wait_for_point(stream, op);
    // A wait in the legacy stream is a barrier for blocking streams (docs/semantics.md, rule 9), even if its point is
    // reached. A record is such a barrier, too, so submit one.
    return stream.legacy ? submit_any(stream, {.kind = OpKind::kRecord, .here = op.here})
                         : stream.submitted.load(std::memory_order_relaxed);
  }
  const NvtxRange range(op);
  if (stream.legacy && op.kind == OpKind::kAlloc) {
    // An allocation is no barrier for blocking streams (rule 8). It gets no event and no position, because blocking
    // streams would wait for these.
    const base::LockGuard lock(stream.submitting);
    if (op.address) enqueuer_.put(stream.handle, op);  // null: only observers see the allocation
    return stream.submitted.load(std::memory_order_relaxed);
  }
  // In a blocking stream, a record that the runtime issues for itself does not wait for legacy work.
  const bool skips_barriers = runtime::is_bookkeeping(op) && !stream.legacy;
  const std::vector<Barrier> barriers = skips_barriers ? std::vector<Barrier>() : barriers_before(stream, op.here);
  const base::LockGuard lock(stream.submitting);
  require_open(stream, op.here);
  const std::uint64_t position = stream.submitted.load(std::memory_order_relaxed) + 1;
  for (const Barrier& barrier : barriers) {
    if (barrier.event)
      enqueuer_.checked(cudaStreamWaitEvent(stream.handle, barrier.event.native(), 0), "cudaStreamWaitEvent", op);
    barrier.seen->store(barrier.end, std::memory_order_relaxed);
  }
  if (op.kind == OpKind::kRecord) {
    enqueuer_.record(stream, op, position);
  } else {
    stream.recent[position % stream.recent.size()] = {op.name, op.here};
    std::optional<RunTimes::Scope> timed;
    if (runtime::observed() && !stream.audience && is_timed(op.kind))
      timed.emplace(times_, stream, op, position, core_.id);
    enqueuer_.enqueue(stream, op, position);
  }
  // Record the mark now. A mark recorded later would be another barrier, and would also follow ops submitted meanwhile.
  const bool needs_mark = stream.legacy || (stream.may_end && !is_capturing(stream.handle));
  if (needs_mark && op.kind != OpKind::kRecord)
    enqueuer_.record(stream, {.kind = OpKind::kRecord, .here = op.here}, position);
  // release: a thread that sees the position finds its mark.
  stream.submitted.store(position, std::memory_order_release);
  return position;
}

// Returns the event that represents the point. Empty: the point is reached. If the point has no mark, because no event
// was recorded after that op, the current end of the stream represents it.
EventUse CudaBackend::event_for(CudaStream& target, std::uint64_t position, Here here) {
  if (target.known_done(position)) return {};
  EventUse event = target.mark_at(position);
  if (event || target.known_done(position)) return event;
  return mark_end(target, here);
}

// Returns an event at the current end of the stream. A closed stream has no handle, but close_stream() recorded such an
// event. If the stream's owner may destroy it (may_end), each op has a mark already.
EventUse CudaBackend::mark_end(CudaStream& target, Here here) {
  const base::LockGuard lock(target.submitting);
  const std::uint64_t end = target.submitted.load(std::memory_order_relaxed);
  if (!target.has_handle()) return target.mark_at(end);
  return enqueuer_.record_end(target, end, here);
}

// The legacy stream and the blocking streams are barriers for each other (docs/semantics.md, rules 3-10). CUDA
// implements that, but not for everything. On an H200 it did not cover host functions. Also, a copy in one stream could
// read stale bytes of pinned memory that a kernel in the other stream had written. Events cover both cases. So the next
// op also waits for an event of each such stream that has new work. The caller must not hold stream.submitting, because
// recording the event may take the lock of the other stream.
std::vector<CudaBackend::Barrier> CudaBackend::barriers_before(CudaStream& stream, Here here) {
  std::vector<Barrier> barriers;
  const auto add = [&](CudaStream& other, std::atomic<std::uint64_t>& seen) {
    const std::uint64_t end = other.submitted.load(std::memory_order_acquire);
    if (seen.load(std::memory_order_relaxed) >= end) return;
    barriers.push_back({event_for(other, end, here), &seen, end});
    if (runtime::observed_by(stream.audience))
      runtime::notify_barrier(stream, stream.submitted.load(std::memory_order_relaxed), {&other, end});
  };
  if (stream.legacy) {
    const base::LockGuard lock(mutex_);
    for (CudaStream* other : streams_) {
      if (other->joins_legacy) add(*other, other->seen_by_legacy);
    }
  } else if (stream.joins_legacy && legacy_) {
    add(*legacy_, stream.legacy_seen);
  }
  return barriers;
}

void CudaBackend::wait_for_point(CudaStream& stream, const Op& op) {
  if (op.point.stream == &stream) return;  // the stream's own order implies it
  if (typeid(*op.point.stream) != typeid(CudaStream)) {
    // No CUDA stream can wait for a point of another kind of device, so the host thread waits here. Null core: that
    // device finished its work and was closed.
    if (runtime::DeviceCore* core = op.point.stream->core) core->backend->wait(op.point.stream, op.point.position, 0);
    return;
  }
  CudaStream& target = static_cast<CudaStream&>(*op.point.stream);
  require_point(target, op.point.position, stream, op.here);
  const EventUse event = event_for(target, op.point.position, op.here);
  if (!event) return;
  const base::LockGuard lock(stream.submitting);
  require_open(stream, op.here);
  enqueuer_.checked(cudaStreamWaitEvent(stream.handle, event.native(), 0), "cudaStreamWaitEvent", op);
}

}  // namespace slip::backend
