// CudaStream: a stream of a GPU. Positions count submissions. A mark is a CUDA event recorded after a position. With
// it, CudaBackend can wait for a point (stream, position) and query it. Also the pool of CUDA events.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <deque>
#include <utility>
#include <vector>

#include "base/biased_lock.hpp"
#include "base/sync.hpp"
#include "runtime/backend.hpp"
#include "runtime/core.hpp"

namespace slip::backend {

class EventPool;

class CudaEvent final : public runtime::EventState {
 public:
  CudaEvent(EventPool& pool, cudaEvent_t native, bool timed) : pool_(pool), native_(native), timed_(timed) {}
  Picos since(const runtime::EventState& start) const override;
  cudaEvent_t native() const { return native_; }

 private:
  friend class EventPool;
  void end() noexcept override;
  EventPool& pool_;
  const cudaEvent_t native_;
  const bool timed_;
};

// The unused events of one GPU. Never destroyed, because events may outlive their device.
class EventPool {
 public:
  static EventPool& of(int device);
  CudaEvent* take(bool timed);  // the caller owns one reference
  int device() const { return device_; }

 private:
  friend class CudaEvent;
  explicit EventPool(int device) : device_(device) {}
  const int device_;
  base::SpinLock lock_;
  std::vector<CudaEvent*> idle_[2] SLIP_GUARDED_BY(lock_);  // untimed, timed
};

// A reference to an event. While it exists, the pool does not reuse the event.
class EventUse {
 public:
  EventUse() = default;
  explicit EventUse(CudaEvent* owned) : event_(owned) {}
  EventUse(EventUse&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  EventUse& operator=(EventUse&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~EventUse() {
    if (event_) event_->release();
  }
  EventUse share() const {
    if (event_) event_->retain();
    return EventUse(event_);
  }
  explicit operator bool() const { return event_ != nullptr; }
  cudaEvent_t native() const { return event_->native(); }
  Picos since(const EventUse& start) const { return event_->since(*start.event_); }

 private:
  CudaEvent* event_ = nullptr;
};

struct CudaStream final : runtime::StreamState {
  cudaStream_t handle = nullptr;
  bool owned = true;  // false: the legacy stream, or a stream adopted from another library
  // The stream is adopted, and its owner may destroy it at any time. So the handle is used only while the owner submits
  // an op through this stream. Each op gets a mark then, because a mark cannot be recorded later.
  bool may_end = false;
  int gpu = 0;
  bool joins_legacy = false;  // a blocking stream; for adopted streams as CUDA reports it

  bool stands_alone() const { return !joins_legacy && !legacy; }  // no implicit barrier concerns this stream
  bool has_handle() const { return handle && !may_end; }          // outside a submission

  // One submission at a time, so positions are the order in the CUDA stream. Guards no data: it orders the calls of
  // CUDA.
  base::BiasedLock submitting;
  std::atomic<std::uint64_t> submitted{0};
  // For blocking streams. legacy_seen: the position of the legacy stream that this stream already waits for.
  // seen_by_legacy: the reverse. Each is written under the lock of the waiting stream.
  std::atomic<std::uint64_t> legacy_seen{0}, seen_by_legacy{0};
  struct Recent {
    Name name;
    Here here;
  };
  std::array<Recent, 8> recent{};  // the last ops, for the text of a fault; written under `submitting`

  // The event of the first mark at `position` or later. Empty: there is none, or the point is reached.
  EventUse mark_at(std::uint64_t position);
  bool known_done(std::uint64_t position) const { return done_.load(std::memory_order_acquire) >= position; }
  void add_mark(std::uint64_t position, EventUse event);
  void note_done(std::uint64_t position);  // everything up to it is done
  bool drained();                          // whether its last mark is reached

  CUstream_st* native() override { return handle; }
  runtime::EventState* make_timed_event() override { return EventPool::of(gpu).take(true); }
  bool compiles_plans() const override { return true; }

 private:
  struct Mark {
    std::uint64_t position;
    EventUse event;
  };
  void drop_done() SLIP_REQUIRES(marks_lock_);
  base::BiasedLock marks_lock_;
  std::deque<Mark> marks_ SLIP_GUARDED_BY(marks_lock_);  // sorted by position
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace slip::backend
