// StreamRef: an ordered queue of work on a device, by reference; Stream owns one. Ops of a stream run in the order
// issued; ops of different streams may overlap unless an event or the legacy stream orders them (docs/semantics.md).
//
// All calls return once the work is queued (they block only while the queue is full), except sync and copies of
// pageable memory. Streams may be used from several threads.
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
  kNonBlocking = 1,  // not
};

class StreamRef {
 public:
  StreamRef(std::nullptr_t) = delete;

  void launch(const Kernel& kernel, const Operands& operands = {}, const Cost& cost = {}, Here here = Here::at()) const;
  void copy(Range to, Range from, Name name = {}, Here here = Here::at()) const;
  void fill(Range to, unsigned char value, Name name = {}, Here here = Here::at()) const;
  // A function of the host, run in stream order. It must make no calls into the runtime (kNotPermitted). What it
  // touches can be told, so that it can be checked; scalars are not for it. Of its cost only `time` counts: how long it
  // takes on the sim device.
  void host(std::function<void()> function, Name name = {}, Here here = Here::at()) const;
  void host(std::function<void()> function, const Operands& touches, const Cost& cost = {},
            Here here = Here::at()) const;

  Event record(Here here = Here::at()) const;
  TimedEvent record_timed(Here here = Here::at()) const;
  void record(Event& event, Here here = Here::at()) const;
  void record(TimedEvent& event, Here here = Here::at()) const;
  // Later work of this stream waits for the record that `event` holds now. Never blocks the host.
  void wait(const Event& event, Here here = Here::at()) const;

  // Stream memory operations on a 32-bit word of pinned or device memory: hold this stream until word >= value; set it.
  void wait_value(Range word, std::uint32_t value, Name name = {}, Here here = Here::at()) const;
  void write_value(Range word, std::uint32_t value, Name name = {}, Here here = Here::at()) const;

  // Stream-ordered memory (rules 84-88). The address is known at once; the memory may be used by work ordered after
  // this call, and until the free in stream order.
  Buffer alloc(std::size_t bytes, Name name = {}, Here here = Here::at()) const;
  void free(Buffer&& buffer, Here here = Here::at()) const;

  void sync(Here here = Here::at()) const;
  bool sync_for(std::chrono::nanoseconds limit, Here here = Here::at()) const;  // false: not done within `limit`
  bool query(Here here = Here::at()) const;                                     // true: all work is done

  // Work issued between begin and end is not run but becomes a Plan; streams that wait for an event recorded here join.
  void begin_capture(Here here = Here::at()) const;
  Plan end_capture(Here here = Here::at()) const;
  bool capturing() const;
  void launch(Plan& plan, Here here = Here::at()) const;
  void launch(Plan& plan, const Bindings& bindings, Here here = Here::at()) const;

  StreamFlags flags() const;
  int priority() const;
  std::uint64_t id() const { return id_; }           // unique for the life of the process
  CUstream_st* native() const;                       // null on devices that have no native stream
  StreamState* state(Here here = Here::at()) const;  // throws kInvalidHandle when destroyed

  friend bool operator==(StreamRef a, StreamRef b) { return a.id_ == b.id_; }

 protected:
  friend class Device;
  friend struct DeviceCore;
  StreamRef(StreamState* state, std::uint64_t id) : state_(state), id_(id) {}
  void take_record(Event& event, EventState* native, Here here) const;

  StreamState* state_;
  std::uint64_t id_;
};

// A stream and its life. Destroying it returns at once; work already issued still runs.
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

  // Wraps a native stream (a cudaStream_t) that somebody else owns, say a framework: work issued here and there keeps
  // one order. The native stream must outlive this object. kUnsupported on devices without native streams.
  static Stream adopt(const Device& device, CUstream_st* native, Here here = Here::at());

 private:
  friend class Device;
  Stream(StreamRef ref, std::shared_ptr<DeviceCore> core) : StreamRef(ref), core_(std::move(core)) {}
  std::shared_ptr<DeviceCore> core_;
};

}  // namespace slip
