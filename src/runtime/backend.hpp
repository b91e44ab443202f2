// Backend: the interface of cpu, sim and cuda devices. One Backend per device.
//
// The runtime checks arguments, keeps errors, captures and notifies observers; a backend orders ops, runs them and
// waits for them. All functions may be called from several threads. "(rule N)" in comments refers to docs/semantics.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/buffer.hpp"
#include "slip/device.hpp"
#include "slip/op.hpp"

namespace slip::runtime {

struct DeviceCore;

// As a position in a stream: everything that was submitted to the stream before the call.
inline constexpr std::uint64_t kEverything = ~std::uint64_t{0};

// Whether a flag with the value `written` ends a wait_value() for `awaited`. The comparison is cyclic, as that of
// cuStreamWaitValue32: values count up and may wrap around.
constexpr bool ends_wait(std::uint32_t written, std::uint32_t awaited) {
  return static_cast<std::int32_t>(written - awaited) >= 0;
}

// How to open a stream.
struct StreamSpec {
  StreamFlags flags = StreamFlags::kBlocking;
  int priority = 0;
  bool legacy = false;
  Name name = {};  // for traces
  // On devices with virtual time: a stream that models the steps of an exchange. Its ops cost no host time, run no
  // functions, enter no hardware queue, run concurrently with kernels, and are not reported to observers.
  bool wire = false;
  CUstream_st* adopted = nullptr;  // a native stream that the caller owns
  bool adopted_may_end = false;    // the caller may destroy it before this stream is closed
};

// For backends that have no native streams.
inline void require_own_stream(const StreamSpec& spec, const char* kind) {
  if (spec.adopted)
    throw Error(ErrorCode::kUnsupported, std::string("a ") + kind + " device has no native streams that it could adopt",
                {});
}

// A plan as one op, for backends that can compile it (StreamState::compiles_plans). Its nodes are in the order of
// issue. Each runs in one of the plan's streams, after the nodes that it waits for. The plan keeps `compiled` from
// launch to launch. If `nodes` is empty, the backend launches `compiled` again.
struct PlanOps {
  struct Node {
    Op op;
    std::uint32_t stream = 0;
    std::span<const std::uint32_t> waits;
  };
  std::span<const Node> nodes;
  std::uint32_t streams = 0;
  std::shared_ptr<void>* compiled = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Memory of the given kind, at least 64-byte aligned. Throws kOutOfMemory.
  virtual void* allocate(MemoryKind kind, std::size_t bytes) = 0;
  virtual void deallocate(MemoryKind kind, void* data, std::size_t bytes) noexcept = 0;

  // Opens a stream; the runtime fills in its id. Closing returns at once, and pending work still runs. It sets the id
  // to 0 last, because the state may be reused from then on.
  virtual StreamState* open_stream(const StreamSpec& spec) = 0;
  virtual void close_stream(StreamState& stream) noexcept = 0;

  // Queues the op and returns its position; blocks only while the stream's queue is full. kRecord returns the recorded
  // position; kWait makes the stream wait for a point of a stream of any device.
  virtual std::uint64_t submit(StreamState& stream, const Op& op) = 0;

  // Returns whether everything up to `position` is done. Never blocks.
  virtual bool reached(StreamState& stream, std::uint64_t position) = 0;
  // Blocks until it is done. Null stream: all streams of the device. False: `deadline_ns` of now_ns() (0: none) has
  // passed.
  virtual bool wait(StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) = 0;

  virtual Picos now() = 0;
};

using Backends = std::vector<std::unique_ptr<Backend>>;
using Cores = std::span<DeviceCore* const>;

// The backend's part of an event: a native event or a time stamp. Reference-counted, because events are values.
class EventState {
 public:
  virtual ~EventState() = default;
  // The time from `start` to this event. REQUIRES: both are reached.
  virtual Picos since(const EventState& start) const = 0;
  // Whether its only owner may reuse it for another record.
  virtual bool renewable() const { return false; }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: the caller holds one already
  void release() noexcept {
    // acq_rel: the thread that drops the last reference observes all uses by the other owners.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) end();
  }
  // acquire: observes all uses by the last other owner, for instance a stream.
  bool has_one_owner() const { return references_.load(std::memory_order_acquire) == 1; }

 protected:
  virtual void end() noexcept { delete this; }  // the last reference is gone
  void revive() { references_.store(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> references_{1};
};

// One row of the table of backends, which backend/table.cpp defines.
struct BackendEntry {
  std::string_view prefix;  // "cpu"
  // Makes the backends of `cores`, whose options are set, and fills in their info. `rest` is the name after "prefix:".
  Backends (*open)(std::string_view rest, Cores cores);
};
std::span<const BackendEntry> backends();

// While one exists, this thread still runs an op and must not wait for work of a device, but may submit. Backends use
// it while they destroy a host function, which may own the last handle of a buffer or of a device.
namespace detail {
extern constinit thread_local int cannot_wait;  // depth of CannotWait on this thread
}
class CannotWait {
 public:
  CannotWait() { ++detail::cannot_wait; }
  ~CannotWait() { --detail::cannot_wait; }
};

// The time at which a stream reached a timed event, for devices whose clock the library reads itself.
class Stamp : public EventState {
 public:
  void set(Picos at) { at_.store(at, std::memory_order_release); }
  Picos at() const { return at_.load(std::memory_order_acquire); }
  bool renewable() const override { return true; }
  Picos since(const EventState& start) const override { return at() - static_cast<const Stamp&>(start).at(); }

 private:
  std::atomic<Picos> at_{0};
};

}  // namespace slip::runtime
