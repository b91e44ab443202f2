// Event: a point in a stream that others can wait for. An Event is a value: it holds the record made last, and copying
// it copies that record. A wait takes the record held at the call; recording again later does not change it.
//
// An Event object is like a variable: several threads may use it at once only if none of them records it.
#pragma once

#include <chrono>
#include <cstdint>

#include "slip/error.hpp"
#include "slip/op.hpp"

namespace slip {

class Device;

// Owner of a backend's event, counted; null where the backend needs none.
class EventHandle {
 public:
  EventHandle() = default;
  explicit EventHandle(EventState* state) : state_(state) {}
  EventHandle(const EventHandle& other);
  EventHandle(EventHandle&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
  EventHandle& operator=(EventHandle other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~EventHandle() {
    if (state_) release();
  }
  EventState* get() const { return state_; }

 private:
  void release() noexcept;
  EventState* state_ = nullptr;
};

class Event {
 public:
  Event() = default;                     // never recorded; takes the device of its first record
  explicit Event(const Device& device);  // never recorded; may be recorded in this device's streams only

  // True when the work it captured is done, or when it was never recorded. Never blocks. Throws the work's error.
  bool query(Here here = Here::at()) const;
  // Blocks the host until the work it captured is done. Throws the work's error.
  void sync(Here here = Here::at()) const;

  bool recorded() const { return point_.stream != nullptr; }
  Point point() const { return point_; }
  std::uint32_t device_id() const { return device_; }

 protected:
  friend class StreamRef;
  Point point_;
  std::uint64_t stream_ = 0;   // id of the stream it was recorded in, for traces
  std::uint32_t device_ = 0;   // 0: not tied to a device yet
  std::uint64_t capture_ = 0;  // the capture it was recorded in, if any
  EventHandle handle_;
};

// An event that also says when the point was reached. Only timed events can be subtracted.
class TimedEvent : public Event {
 public:
  using Event::Event;
  // Time between two points of one device. kInvalidHandle when one was never recorded or the devices differ, kNotReady
  // when one is not reached yet.
  friend std::chrono::nanoseconds operator-(const TimedEvent& end, const TimedEvent& start);
};

}  // namespace slip
