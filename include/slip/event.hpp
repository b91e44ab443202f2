// Event: a point in a stream that streams and the host can wait for. An Event is a value: it holds its last record, and
// a copy holds the same record. A wait uses the record held at the time of the call; a later record does not change it.
//
// Thread rule: like a variable. Threads may share an Event only if none of them records it.
#pragma once

#include <chrono>
#include <cstdint>

#include "slip/error.hpp"
#include "slip/op.hpp"

namespace slip {

class Device;

// A reference-counted handle to a backend's event; null for backends that have none.
class EventHandle {
 public:
  EventHandle() = default;
  explicit EventHandle(runtime::EventState* state) : state_(state) {}
  EventHandle(const EventHandle& other);
  EventHandle(EventHandle&& other) noexcept : state_(other.state_) { other.state_ = nullptr; }
  EventHandle& operator=(EventHandle other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~EventHandle() {
    if (state_) release();
  }
  runtime::EventState* get() const { return state_; }

 private:
  void release() noexcept;
  runtime::EventState* state_ = nullptr;
};

class Event {
 public:
  Event() = default;                     // not recorded; bound to a device by its first record
  explicit Event(const Device& device);  // not recorded; only streams of this device may record it

  // True if the work before the point is done, or if the event was never recorded. Never blocks. Throws the work's
  // error.
  bool query(Here here = Here::at()) const;
  // Blocks the host until the work before the point is done. Throws the work's error.
  void sync(Here here = Here::at()) const;
  bool sync_for(std::chrono::nanoseconds limit, Here here = Here::at()) const;  // false: not reached after `limit`

  bool recorded() const { return point_.stream != nullptr; }
  StreamPoint point() const { return point_; }
  std::uint32_t device_id() const { return device_; }

 protected:
  friend class StreamRef;
  StreamPoint point_;
  std::uint64_t stream_ = 0;   // id of the stream that recorded it, for traces
  std::uint32_t device_ = 0;   // 0: not bound to a device yet
  std::uint64_t capture_ = 0;  // the capture that recorded it; 0: none
  EventHandle handle_;
};

// An event that also stores when its point was reached. Only timed events can be subtracted.
class TimedEvent : public Event {
 public:
  using Event::Event;
  // Time between two points of one device. Throws kInvalidHandle if an event was never recorded or the devices differ,
  // and kNotReady if a point is not reached yet.
  friend std::chrono::nanoseconds operator-(const TimedEvent& end, const TimedEvent& start);
};

}  // namespace slip
