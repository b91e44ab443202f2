// Backend: the seam between the runtime and the three ways to run an op. One Backend per device.
//
// The runtime checks arguments, keeps errors, captures and tells observers; a backend orders, runs and waits. All
// functions may be called from several threads.
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

namespace slip {

struct DeviceCore;

// Everything submitted to a stream before the call.
inline constexpr std::uint64_t kEverything = ~std::uint64_t{0};

// What a stream is to be.
struct StreamSpec {
  StreamFlags flags = StreamFlags::kBlocking;
  int priority = 0;
  bool legacy = false;
  Name name = {};  // for traces
  // On devices with virtual time: what an exchange does there, as far as it takes time. Its ops cost the host nothing,
  // run no functions, wait in no queue, are beside kernels and not told to observers.
  bool wire = false;
  CUstream_st* adopted = nullptr;  // a stream that somebody else owns, on devices that have native ones
};

// For backends that have no native streams.
inline void require_own_stream(const StreamSpec& spec, const char* kind) {
  if (spec.adopted)
    throw Error(Code::kUnsupported, std::string("a ") + kind + " device has no native streams that it could adopt", {});
}

// A plan as one op, for backends that can compile it (StreamState::compiles_plans): ops in the order of issue, each in
// one of the plan's streams and after the nodes it waits for. `compiled` is kept by the plan from launch to launch;
// with no nodes given, what it holds is launched again.
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

  // A stream; the runtime fills in its identity. Closing returns at once, pending work still runs; it sets the id to 0
  // as the last thing, because the state may be handed out again from then on.
  virtual StreamState* open_stream(const StreamSpec& spec) = 0;
  virtual void close_stream(StreamState& stream) noexcept = 0;

  // Queues the op and returns its position; blocks only while the stream's queue is full. kRecord returns the point
  // recorded; kWait with a point of any device's stream holds this one.
  virtual std::uint64_t submit(StreamState& stream, const Op& op) = 0;

  // Whether everything up to `position` is done. Never blocks. Null stream: every stream of the device.
  virtual bool reached(StreamState* stream, std::uint64_t position) = 0;
  // Blocks until it is, or until `deadline_ns` of now_ns() (0: none) has passed: then false.
  virtual bool wait(StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) = 0;

  virtual Picos now() = 0;
};

// A backend's part of an event: its own event object or time stamp. Counted, because events are values.
class EventState {
 public:
  virtual ~EventState() = default;
  // Time from `start`'s point to this one's; both were reached.
  virtual Picos since(const EventState& start) const = 0;
  // Whether it may be given to another record once its only owner wants that.
  virtual bool renewable() const { return false; }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: the caller holds one already
  void release() noexcept {
    // acq_rel: the last holder sees what all others did with it.
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) end();
  }
  // acquire: who held it last, a stream for instance, is done with it.
  bool has_one_owner() const { return references_.load(std::memory_order_acquire) == 1; }

 protected:
  virtual void end() noexcept { delete this; }  // nobody refers to it any more
  void revive() { references_.store(1, std::memory_order_relaxed); }

 private:
  std::atomic<int> references_{1};
};

// One row of the table of backends, defined in backend/table.cpp: the lower room declares, the upper one fills in.
struct BackendEntry {
  std::string_view prefix;  // "cpu"
  // Makes the backends of `cores`, whose options are set, and fills in their info. `rest` is what follows "prefix:".
  std::vector<std::unique_ptr<Backend>> (*open)(std::string_view rest, std::span<DeviceCore* const> cores);
};
std::span<const BackendEntry> backends();

}  // namespace slip
