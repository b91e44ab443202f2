// CUDA events as the runtime's EventState: counted, and kept for use again, since making one costs more than recording
// it.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "base/sync.hpp"
#include "runtime/backend.hpp"

namespace slip {

class EventPool;

class CudaEvent final : public EventState {
 public:
  CudaEvent(EventPool& pool, cudaEvent_t native, bool timed) : pool_(pool), native_(native), timed_(timed) {}
  Picos since(const EventState& start) const override;
  cudaEvent_t native() const { return native_; }

 private:
  friend class EventPool;
  void end() noexcept override;
  EventPool& pool_;
  const cudaEvent_t native_;
  const bool timed_;
};

// The events of one GPU that nobody refers to. Never destroyed, for events that outlive their device.
class EventPool {
 public:
  static EventPool& of(int device);
  CudaEvent* take(bool timed);  // with one reference
  int device() const { return device_; }

 private:
  friend class CudaEvent;
  explicit EventPool(int device) : device_(device) {}
  const int device_;
  SpinLock lock_;
  std::vector<CudaEvent*> idle_[2];  // untimed, timed; guarded by lock_
};

}  // namespace slip
