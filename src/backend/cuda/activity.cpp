#include "backend/cuda/activity.hpp"

#include <cuda_runtime_api.h>

#include "base/sync.hpp"

#if __has_include(<cupti.h>)
#include <cupti.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <unordered_map>

#include "base/clock.hpp"
#include "base/thread.hpp"

namespace slip::backend {
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

}  // namespace slip::backend

#else  // a toolkit without CUPTI's header

namespace slip::backend {

Activity* Activity::get() { return nullptr; }
void Activity::start() {}
void Activity::pause() {}
void Activity::push(std::uint64_t) const {}
void Activity::pop() const {}
std::vector<std::pair<std::uint64_t, GpuSpan>> Activity::take(const std::function<bool(std::uint64_t)>&) { return {}; }

}  // namespace slip::backend

#endif
