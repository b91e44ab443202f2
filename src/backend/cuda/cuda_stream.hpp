// CudaStream: a stream of a GPU. A position counts submissions; the marks say which CUDA event stands for which
// position, so that a point (stream, position) can be waited for and asked about like on any other device.
#pragma once

#include <array>
#include <deque>
#include <utility>

#include "backend/cuda/events.hpp"
#include "base/biased_lock.hpp"
#include "runtime/core.hpp"

namespace slip {

// A reference to an event that keeps it from being recorded again by somebody else.
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

 private:
  CudaEvent* event_ = nullptr;
};

struct CudaStream final : StreamState {
  cudaStream_t handle = nullptr;
  bool owned = true;  // false: the legacy stream, or adopted
  int gpu = 0;
  bool joins_legacy = false;  // a blocking stream, as CUDA says: that of an adopted one is not ours to know

  bool stands_alone() const { return !joins_legacy && !legacy; }

  BiasedLock submitting;  // one submission at a time: positions are the order in the CUDA stream
  std::atomic<std::uint64_t> submitted{0};
  // Of a blocking stream: up to where it waits for the legacy stream, and that one for it. Written under the lock of
  // the stream that waits.
  std::atomic<std::uint64_t> legacy_seen{0}, seen_by_legacy{0};
  struct Recent {
    Name name;
    Here here;
  };
  std::array<Recent, 8> recent{};  // the ops issued last, for the message about a fault; guarded by submitting

  // The event of the first mark at `position` or later. Empty: none was recorded since, or the point is reached.
  EventUse mark_at(std::uint64_t position);
  bool known_done(std::uint64_t position) const { return done_.load(std::memory_order_acquire) >= position; }
  void add_mark(std::uint64_t position, EventUse event);
  void note_done(std::uint64_t position);  // everything up to it is done
  bool drained();                          // closed, and its last mark is reached

  CUstream_st* native() override { return handle; }
  EventState* make_timed_event() override { return EventPool::of(gpu).take(true); }
  bool compiles_plans() const override { return true; }

 private:
  struct Mark {
    std::uint64_t position;
    EventUse event;
  };
  void drop_done();
  BiasedLock marks_lock_;
  std::deque<Mark> marks_;  // by position; guarded by marks_lock_
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace slip
