#include "backend/cuda/run_times.hpp"

#include <algorithm>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/thread.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {
namespace {

// Maximum distance of a time from its base event. CUDA returns elapsed times as float milliseconds; at one second their
// resolution is still below 0.1 us.
constexpr Picos kRebase = 1'000'000'000'000;
constexpr int kTries = 5;              // measurements of the base; the one with the shortest interval counts
constexpr std::size_t kMax = 1 << 16;  // unreported runs; if there are more, the submitting thread waits for the oldest

EventUse record_timed(int gpu, cudaStream_t stream) {
  EventUse event(EventPool::of(gpu).take(true));
  check(cudaEventRecord(event.native(), stream), "cudaEventRecord", gpu);
  return event;
}

}  // namespace

// Relates the GPU's clock to the host's. The host records an event and synchronizes with it at once, so the event lies
// between two readings of the host's clock. The shortest of kTries intervals counts. It uses a separate stream, because
// the stream of the op may be blocked.
void RunTimes::take_base() {
  cudaStream_t aside = nullptr;
  check(cudaStreamCreateWithFlags(&aside, cudaStreamNonBlocking), "cudaStreamCreateWithFlags", gpu_);
  Picos closest = 0;
  for (int i = 0; i < kTries; ++i) {
    const Picos before = base::now_ns() * 1000;
    EventUse event = record_timed(gpu_, aside);
    check(cudaEventSynchronize(event.native()), "cudaEventSynchronize", gpu_);
    const Picos after = base::now_ns() * 1000;
    if (base_.event && closest != 0 && after - before >= closest) continue;
    closest = after - before;
    base_.event = std::move(event);
    base_.at = before + (after - before) / 2;
  }
  check(cudaStreamDestroy(aside), "cudaStreamDestroy", gpu_);
}

RunTimes::Scope::Scope(RunTimes& times, const CudaStream& stream, const Op& op, std::uint64_t position,
                       std::uint32_t device)
    : times_(times),
      stream_(stream),
      record_{.kind = RecordKind::kRun,
              .engine = op.engine,
              .device = device,
              .stream = stream.last_id,
              .position = position,
              .thread = base::thread_index(),
              .name = op.name,
              .here = op.here},
      activity_(op.exchange && op.exchange->uses_other_threads() ? nullptr : Activity::get()) {
  static std::atomic<std::uint64_t> numbers{0};
  times_.active_.store(true, std::memory_order_relaxed);
  const base::LockGuard lock(times_.mutex_);
  if (activity_) {
    activity_->start();
    number_ = numbers.fetch_add(1, std::memory_order_relaxed) + 1;
    times_.numbered_.emplace(number_, record_);
    activity_->push(number_);
    return;
  }
  if (!times_.base_.event) times_.take_base();
  begun_ = record_timed(times_.gpu_, stream.handle);
}

RunTimes::Scope::~Scope() {
  if (activity_) {
    activity_->pop();
    return;
  }
  try {
    EventUse ended = record_timed(times_.gpu_, stream_.handle);
    const base::LockGuard lock(times_.mutex_);
    times_.runs_.push_back({std::move(begun_), std::move(ended), record_});
    if (times_.runs_.size() > kMax) static_cast<void>(cudaEventSynchronize(times_.runs_.front().ended.native()));
  } catch (const Error&) {
    // The device is lost: the op has no times.
  }
}

Picos RunTimes::time_of(const EventUse& event) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, base_.event.native(), event.native()), "cudaEventElapsedTime", gpu_);
  return base_.at + static_cast<Picos>(static_cast<double>(milliseconds) * 1e9);
}

void RunTimes::collect() {
  const base::LockGuard lock(mutex_);
  if (Activity* activity = Activity::get()) {
    collect_activity();
    if (!runtime::observed()) {
      activity->pause();
      numbered_.clear();
    }
  }
  collect_events();
  if (!runtime::observed()) active_.store(false, std::memory_order_relaxed);
}

// If an op has several kernels or copies, its run lasts from the first start to the last end.
void RunTimes::collect_activity() {
  std::unordered_map<std::uint64_t, Record> done;
  const auto ours = [known = &numbered_](std::uint64_t number) { return known->contains(number); };
  for (const auto& [number, span] : Activity::get()->take(ours)) {
    const auto [place, first] = done.emplace(number, numbered_.at(number));
    Record& record = place->second;
    record.started = first ? span.started : std::min(record.started, span.started);
    record.ended = first ? span.ended : std::max(record.ended, span.ended);
  }
  for (const auto& [number, record] : done) {
    runtime::notify(record);
    numbered_.erase(number);
  }
}

void RunTimes::collect_events() {
  std::deque<Run> left;
  for (Run& run : runs_) {
    if (cudaEventQuery(run.ended.native()) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      left.push_back(std::move(run));
      continue;
    }
    run.record.started = time_of(run.begun);
    run.record.ended = time_of(run.ended);
    runtime::notify(run.record);
    // Measure later times from here, so that the float stays small and precise.
    if (run.record.ended - base_.at > kRebase) base_ = {std::move(run.ended), run.record.ended};
  }
  runs_ = std::move(left);
}

}  // namespace slip::backend
