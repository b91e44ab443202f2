#include "backend/cuda/events.hpp"

#include <map>
#include <mutex>

#include "backend/cuda/check.hpp"

namespace slip {

void CudaEvent::end() noexcept {
  const std::lock_guard lock(pool_.lock_);
  revive();
  pool_.idle_[timed_ ? 1 : 0].push_back(this);
}

Picos CudaEvent::since(const EventState& start) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(start).native_, native_),
        "cudaEventElapsedTime", pool_.device());
  return static_cast<Picos>(static_cast<double>(milliseconds) * 1e9);
}

EventPool& EventPool::of(int device) {
  static std::mutex mutex;
  static auto* const kPools = new std::map<int, std::unique_ptr<EventPool>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<EventPool>& pool = (*kPools)[device];
  if (!pool) pool.reset(new EventPool(device));
  return *pool;
}

CudaEvent* EventPool::take(bool timed) {
  {
    const std::lock_guard lock(lock_);
    std::vector<CudaEvent*>& idle = idle_[timed ? 1 : 0];
    if (!idle.empty()) {
      CudaEvent* event = idle.back();
      idle.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreateWithFlags",
        device_);
  return new CudaEvent(*this, event, timed);
}

}  // namespace slip
