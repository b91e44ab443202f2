#include "backend/cuda/run_times.hpp"

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/thread.hpp"
#include "runtime/observers.hpp"

namespace slip {
namespace {

// Elapsed times come as floats in milliseconds: after a second their steps are still under a tenth of a microsecond.
constexpr Picos kRebase = 1'000'000'000'000;
constexpr int kTries = 5;
constexpr std::size_t kMost = 1 << 16;  // runs kept: then the oldest is waited for

EventUse record_timed(int gpu, cudaStream_t stream) {
  EventUse event(EventPool::of(gpu).take(true));
  check(cudaEventRecord(event.native(), stream), "cudaEventRecord", gpu);
  return event;
}

}  // namespace

// The two clocks meet at an event that the host sees soonest after its record: the closest of a few tries, in a stream
// of its own, because the stream of the op may be held up.
void RunTimes::take_base() {
  cudaStream_t aside = nullptr;
  check(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", gpu_);
  Picos closest = 0;
  for (int i = 0; i < kTries; ++i) {
    const Picos before = now_ns() * 1000;
    EventUse event = record_timed(gpu_, aside);
    check(cudaEventSynchronize(event.native()), "cudaEventSynchronize", gpu_);
    const Picos after = now_ns() * 1000;
    if (base_.event && closest != 0 && after - before >= closest) continue;
    closest = after - before;
    base_.event = std::move(event);
    base_.at = before + (after - before) / 2;
  }
  check(cudaStreamDestroy(aside), "cudaStreamDestroy", gpu_);
}

EventUse RunTimes::begin(const CudaStream& stream) {
  {
    const std::lock_guard lock(mutex_);
    if (!base_.event) take_base();
  }
  return record_timed(gpu_, stream.handle);
}

void RunTimes::end(const CudaStream& stream, EventUse begun, const Op& op, std::uint64_t position,
                   std::uint32_t device) {
  EventUse ended = record_timed(gpu_, stream.handle);
  const std::lock_guard lock(mutex_);
  runs_.push_back({std::move(begun), std::move(ended),
                   Record{.kind = RecordKind::kRun,
                          .engine = op.engine,
                          .device = device,
                          .stream = stream.last_id,
                          .position = position,
                          .thread = thread_index(),
                          .name = op.name,
                          .here = op.here}});
  if (runs_.size() > kMost) static_cast<void>(cudaEventSynchronize(runs_.front().ended.native()));
}

Picos RunTimes::time_of(const EventUse& event) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, base_.event.native(), event.native()), "cudaEventElapsedTime", gpu_);
  return base_.at + static_cast<Picos>(static_cast<double>(milliseconds) * 1e9);
}

void RunTimes::collect() {
  const std::lock_guard lock(mutex_);
  std::deque<Run> left;
  for (Run& run : runs_) {
    if (cudaEventQuery(run.ended.native()) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      left.push_back(std::move(run));
      continue;
    }
    run.record.started = time_of(run.begun);
    run.record.ended = time_of(run.ended);
    tell(run.record);
    // Later times are counted from here, so that the float never gets large.
    if (run.record.ended - base_.at > kRebase) base_ = {std::move(run.ended), run.record.ended};
  }
  runs_ = std::move(left);
}

}  // namespace slip
