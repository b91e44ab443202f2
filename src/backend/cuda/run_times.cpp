#include "backend/cuda/run_times.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <utility>
#include <vector>

#include "backend/cuda/check.hpp"
#include "base/clock.hpp"
#include "base/thread.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {

// --- CUPTI ---

struct GpuSpan {
  Picos started = 0, ended = 0;  // on the host's clock
};

// Start and end times of kernels and copies, measured by the GPU and read with CUPTI. CUPTI is loaded at run time. If
// it is missing, or another profiler uses it, RunTimes uses timed events. Process-wide, as CUPTI is.
class Activity {
 public:
  static Activity* get();  // null: CUPTI is not available
  void start();            // records from now on
  void pause();            // stops recording until the next start()

  // Work that this thread enqueues between push() and pop() gets the number.
  void push(std::uint64_t number) const;
  void pop() const;
  // Removes and returns the completed spans whose number is `wanted`. One number may have several spans.
  std::vector<std::pair<std::uint64_t, GpuSpan>> take(const std::function<bool(std::uint64_t)>& wanted);

 private:
  Activity() = default;
  static Activity* load();
};

#if __has_include(<cupti.h>)

namespace {

constexpr auto kOurKind = CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM1;
constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_RUNTIME,  // CUPTI reports the external correlation ids only together with API records;
    CUPTI_ACTIVITY_KIND_DRIVER,   // libraries such as cuBLASLt call the driver API
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
};

struct Library {
  decltype(&cuptiActivityEnable) enable;
  decltype(&cuptiActivityDisable) disable;
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
  decltype(&cuptiActivityGetNextRecord) next_record;
  decltype(&cuptiActivityFlushAll) flush;
  decltype(&cuptiActivityPushExternalCorrelationId) push;
  decltype(&cuptiActivityPopExternalCorrelationId) pop;
  decltype(&cuptiGetTimestamp) timestamp;
};
Library g_cupti{};

struct State {
  base::Mutex mutex;
  // The op numbers of Slipstream by CUPTI's correlation id, until the span arrives.
  std::unordered_map<std::uint32_t, std::uint64_t> numbers SLIP_GUARDED_BY(mutex);
  // Spans by correlation id, until the number arrives.
  std::unordered_map<std::uint32_t, GpuSpan> early SLIP_GUARDED_BY(mutex);
  std::vector<std::pair<std::uint64_t, GpuSpan>> spans SLIP_GUARDED_BY(mutex);
};

State& state() { return base::process_wide<State>(); }  // never destroyed: CUPTI's thread may call back at exit

void* open_library() {
  const std::string name = fmt::format("libcupti.so.{}", CUDART_VERSION / 1000);
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"}) {
    if (void* library = dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer ? kBufferBytes : 0;
  *records = 0;  // as many as fit
}

void note_span(std::uint32_t correlation, std::uint64_t start, std::uint64_t end, Picos offset)
    SLIP_REQUIRES(state().mutex) {
  const GpuSpan span{static_cast<Picos>(start) * 1000 + offset, static_cast<Picos>(end) * 1000 + offset};
  const auto number = state().numbers.find(correlation);
  if (number == state().numbers.end()) {
    state().early[correlation] = span;
    return;
  }
  state().spans.emplace_back(number->second, span);
  state().numbers.erase(number);
}

template <class Span>
void note_span(const CUpti_Activity* record, Picos offset) SLIP_REQUIRES(state().mutex) {
  const auto* span = reinterpret_cast<const Span*>(record);
  note_span(span->correlationId, span->start, span->end, offset);
}

void note_number(const CUpti_ActivityExternalCorrelation& record) SLIP_REQUIRES(state().mutex) {
  if (record.externalKind != kOurKind) return;
  const auto early = state().early.find(record.correlationId);
  if (early == state().early.end()) {
    state().numbers[record.correlationId] = record.externalId;
    return;
  }
  state().spans.emplace_back(record.externalId, early->second);
  state().early.erase(early);
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  std::uint64_t stamp = 0;
  g_cupti.timestamp(&stamp);
  const Picos offset = (base::now_ns() - static_cast<std::int64_t>(stamp)) * 1000;  // both clocks have the same rate
  {
    const base::LockGuard lock(state().mutex);
    CUpti_Activity* record = nullptr;
    while (g_cupti.next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: note_span<CUpti_ActivityKernel10>(record, offset); break;
        case CUPTI_ACTIVITY_KIND_MEMCPY: note_span<CUpti_ActivityMemcpy6>(record, offset); break;
        case CUPTI_ACTIVITY_KIND_MEMCPY2: note_span<CUpti_ActivityMemcpyPtoP4>(record, offset); break;
        case CUPTI_ACTIVITY_KIND_MEMSET: note_span<CUpti_ActivityMemset4>(record, offset); break;
        case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION:
          note_number(*reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record));
          break;
        default: break;
      }
    }
  }
  std::free(buffer);
}

std::atomic<bool> g_recording{false};

}  // namespace

Activity* Activity::load() {
  void* library = open_library();
  if (!library || !find(library, "cuptiActivityEnable", g_cupti.enable) ||
      !find(library, "cuptiActivityDisable", g_cupti.disable) ||
      !find(library, "cuptiActivityRegisterCallbacks", g_cupti.register_callbacks) ||
      !find(library, "cuptiActivityGetNextRecord", g_cupti.next_record) ||
      !find(library, "cuptiActivityFlushAll", g_cupti.flush) ||
      !find(library, "cuptiActivityPushExternalCorrelationId", g_cupti.push) ||
      !find(library, "cuptiActivityPopExternalCorrelationId", g_cupti.pop) ||
      !find(library, "cuptiGetTimestamp", g_cupti.timestamp))
    return nullptr;
  if (g_cupti.register_callbacks(give_buffer, take_buffer) != CUPTI_SUCCESS) return nullptr;
  for (const CUpti_ActivityKind kind : kKinds) {
    if (g_cupti.enable(kind) == CUPTI_SUCCESS) continue;
    for (const CUpti_ActivityKind other : kKinds) g_cupti.disable(other);
    return nullptr;  // another profiler is active, or the user may not profile
  }
  g_recording.store(true, std::memory_order_relaxed);
  return new Activity;
}

Activity* Activity::get() {
  static Activity* const kActivity = load();
  return kActivity;
}

void Activity::start() {
  if (g_recording.load(std::memory_order_relaxed) || g_recording.exchange(true, std::memory_order_relaxed)) return;
  for (const CUpti_ActivityKind kind : kKinds) g_cupti.enable(kind);
}

void Activity::pause() {
  if (!g_recording.exchange(false, std::memory_order_relaxed)) return;
  for (const CUpti_ActivityKind kind : kKinds) g_cupti.disable(kind);
  const base::LockGuard lock(state().mutex);
  state().spans.clear();
  state().numbers.clear();
  state().early.clear();
}

void Activity::push(std::uint64_t number) const { g_cupti.push(kOurKind, number); }

void Activity::pop() const {
  std::uint64_t number = 0;
  g_cupti.pop(kOurKind, &number);
}

std::vector<std::pair<std::uint64_t, GpuSpan>> Activity::take(const std::function<bool(std::uint64_t)>& wanted) {
  g_cupti.flush(0);
  std::vector<std::pair<std::uint64_t, GpuSpan>> result;
  const base::LockGuard lock(state().mutex);
  std::erase_if(state().spans, [&](const auto& span) {
    if (!wanted(span.first)) return false;
    result.push_back(span);
    return true;
  });
  return result;
}

#else  // a toolkit without CUPTI's header

Activity* Activity::get() { return nullptr; }
void Activity::start() {}
void Activity::pause() {}
void Activity::push(std::uint64_t) const {}
void Activity::pop() const {}
std::vector<std::pair<std::uint64_t, GpuSpan>> Activity::take(const std::function<bool(std::uint64_t)>&) { return {}; }

#endif

// --- RunTimes ---

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
    run.record.started = base_.at + run.begun.since(base_.event);
    run.record.ended = base_.at + run.ended.since(base_.event);
    runtime::notify(run.record);
    // Measure later times from here, so that the float stays small and precise.
    if (run.record.ended - base_.at > kRebase) base_ = {std::move(run.ended), run.record.ended};
  }
  runs_ = std::move(left);
}

}  // namespace slip::backend
