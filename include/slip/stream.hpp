// Stream: an ordered queue of work on a device. StreamRef refers to a stream; Stream also owns it. Ops of one stream
// run in issue order. Ops of different streams may overlap unless an event or the legacy stream orders them
// (docs/semantics.md).
//
// Calls return once the work is queued, and block only while the queue is full. Exceptions are sync(), sync_for() and
// copies of pageable memory. Several threads may use a stream concurrently.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "slip/buffer.hpp"
#include "slip/event.hpp"
#include "slip/kernel.hpp"
#include "slip/op.hpp"

namespace slip {

class Bindings;
class Device;
class Plan;

enum class StreamFlags : unsigned char {
  kBlocking = 0,     // ordered with the legacy stream
  kNonBlocking = 1,  // independent of the legacy stream
};

// How long a native stream that Device::adopt() wraps exists.
enum class NativeLifetime : unsigned char {
  kOutlives,  // longer than the Stream
  // Its owner may destroy it at any time. REQUIRES: after that the program issues nothing through the Stream. The
  // runtime records an event after each op, because it may use the native stream only while it issues an op.
  kMayEnd,
};

class StreamRef {
 public:
  StreamRef(std::nullptr_t) = delete;

  void launch(const Kernel& kernel, const Operands& operands = {}, const Cost& cost = {}, Here here = Here::at()) const;
  void copy(Range to, Range from, Name name = {}, Here here = Here::at()) const;
  void fill(Range to, unsigned char value, Name name = {}, Here here = Here::at()) const;
  // Runs a host function in stream order. It must not call the runtime (kNotPermitted). `touches` declares its ranges
  // for the race checker; scalars are not allowed. Of its cost only Cost::time is used: its duration on the sim device.
  // Do not let the function own the last handle of a buffer or of the device. On cpu and cuda the thread that destroys
  // the function cannot wait for the device's work. So it leaks the buffer or the device and logs that.
  void host(std::function<void()> function, Name name = {}, Here here = Here::at()) const;
  void host(std::function<void()> function, const Operands& touches, const Cost& cost = {},
            Here here = Here::at()) const;

  Event record(Here here = Here::at()) const;
  TimedEvent record_timed(Here here = Here::at()) const;
  void record(Event& event, Here here = Here::at()) const;
  void record(TimedEvent& event, Here here = Here::at()) const;
  // Later work of this stream waits for the current record of `event`. Never blocks the host.
  void wait(const Event& event, Here here = Here::at()) const;

  // Stream memory operations on a 32-bit flag in pinned or device memory: block this stream until flag >= value, or set
  // the flag. The comparison is cyclic: it holds if flag - value, as a signed 32-bit number, is not negative.
  void wait_value(Range flag, std::uint32_t value, Name name = {}, Here here = Here::at()) const;
  void write_value(Range flag, std::uint32_t value, Name name = {}, Here here = Here::at()) const;

  // Stream-ordered memory (rules 84-88 in docs/semantics.md). The address is valid at once. Only work ordered after
  // alloc() and before free() may use the memory.
  Buffer alloc(std::size_t bytes, Name name = {}, Here here = Here::at()) const;
  void free(Buffer&& buffer, Here here = Here::at()) const;

  void sync(Here here = Here::at()) const;
  bool sync_for(std::chrono::nanoseconds limit, Here here = Here::at()) const;  // false: not done after `limit`
  bool query(Here here = Here::at()) const;                                     // true: all work is done

  // Work issued between begin and end does not run but becomes a Plan. A stream that waits for an event of this stream
  // joins the capture.
  void begin_capture(Here here = Here::at()) const;
  Plan end_capture(Here here = Here::at()) const;
  bool capturing() const;
  void launch(Plan& plan, Here here = Here::at()) const;
  void launch(Plan& plan, const Bindings& bindings, Here here = Here::at()) const;

  StreamFlags flags() const;
  int priority() const;
  std::uint64_t id() const { return id_; }                    // unique within the process
  CUstream_st* native() const;                                // null on devices without native streams
  runtime::StreamState* state(Here here = Here::at()) const;  // throws kInvalidHandle if destroyed

  friend bool operator==(StreamRef a, StreamRef b) { return a.id_ == b.id_; }

 protected:
  friend class Device;
  friend struct runtime::DeviceCore;
  StreamRef(runtime::StreamState* state, std::uint64_t id) : state_(state), id_(id) {}
  void take_record(Event& event, runtime::EventState* native, Here here) const;

  runtime::StreamState* state_;
  std::uint64_t id_;
};

// Owns a stream. The destructor returns at once; issued work still runs.
class Stream : public StreamRef {
 public:
  Stream(Stream&& other) noexcept : StreamRef(other), core_(std::move(other.core_)) {
    other.state_ = nullptr;
    other.id_ = 0;
  }
  Stream& operator=(Stream&& other) noexcept {
    std::swap(state_, other.state_);
    std::swap(id_, other.id_);
    std::swap(core_, other.core_);
    return *this;
  }
  ~Stream();

  // Wraps a native stream (cudaStream_t) that another owner, such as a framework, created. Work issued through either
  // handle stays in issue order. REQUIRES: the native stream outlives this object. Throws kUnsupported on devices
  // without native streams. Device::adopt with NativeLifetime::kMayEnd has no such requirement.
  static Stream adopt(const Device& device, CUstream_st* native, Here here = Here::at());

 private:
  friend class Device;
  Stream(StreamRef ref, std::shared_ptr<runtime::DeviceCore> core) : StreamRef(ref), core_(std::move(core)) {}
  std::shared_ptr<runtime::DeviceCore> core_;
};

}  // namespace slip
