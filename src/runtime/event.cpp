#include "slip/event.hpp"

#include "base/fail.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "slip/device.hpp"

namespace slip {
namespace {

void require_uncaptured(std::uint64_t capture_id, Here here) {
  if (capture_id == 0) return;
  if (const auto capture = runtime::Capture::find(capture_id))
    capture->invalidate("a captured event was synchronised or queried");
  throw Error(ErrorCode::kCaptureUnsupported, "the event was recorded in a capture: its work does not run (rule 98)",
              here);
}

// The device of a recorded point. Null: no point was recorded, or the device finished its work and was closed. Another
// device may use the state of its stream by now. acquire: if the id is that of `device`, this thread sees its core.
// Throws if the point was recorded in the capture `capture_id`.
runtime::DeviceCore* core_of(const StreamPoint& point, std::uint32_t device, std::uint64_t capture_id, Here here) {
  require_uncaptured(capture_id, here);
  if (!point.stream || point.stream->device_id.load(std::memory_order_acquire) != device) return nullptr;
  return point.stream->core;
}

}  // namespace

EventHandle::EventHandle(const EventHandle& other) : state_(other.state_) {
  if (state_) state_->retain();
}

void EventHandle::release() noexcept { state_->release(); }

Event::Event(const Device& device) : device_(device.id()) {}

bool Event::query(Here here) const {
  runtime::DeviceCore* core = core_of(point_, device_, capture_, here);
  return !core || runtime::is_reached(*core, *point_.stream, point_.position, here, stream_);  // rule 51
}

void Event::sync(Here here) const {
  if (runtime::DeviceCore* core = core_of(point_, device_, capture_, here))
    runtime::wait_for(*core, point_.stream, point_.position, 0, here, stream_);
}

bool Event::sync_for(std::chrono::nanoseconds limit, Here here) const {
  runtime::DeviceCore* core = core_of(point_, device_, capture_, here);
  return !core || runtime::wait_for(*core, point_.stream, point_.position, runtime::deadline_of(limit), here, stream_);
}

std::chrono::nanoseconds operator-(const TimedEvent& end, const TimedEvent& start) {
  if (!end.recorded() || !start.recorded())
    throw Error(ErrorCode::kInvalidHandle, "elapsed time of an event that was never recorded (rule 61)", {});
  if (end.device_ != start.device_)
    base::fail(ErrorCode::kInvalidHandle, {}, "elapsed time between events of two devices, {} and {} (rule 69)",
               start.device_, end.device_);
  if (!end.handle_.get() || !start.handle_.get())
    throw Error(ErrorCode::kInvalidHandle, "elapsed time of an event that was recorded without its time (rule 63)", {});
  if (!start.query() || !end.query())
    throw Error(ErrorCode::kNotReady, "elapsed time of an event not yet reached (rule 62)", {});
  return std::chrono::nanoseconds(end.handle_.get()->since(*start.handle_.get()) / 1000);
}

}  // namespace slip
