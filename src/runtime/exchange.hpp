// Exchange: an op that needs other ranks, for instance a collective. It advances in steps; while it waits for other
// ranks its stream waits, but no thread has to. ExchangeSource: an exchange captured in a plan.
#pragma once

#include <cstdint>

#include "base/sync.hpp"
#include "slip/op.hpp"

namespace slip::runtime {

struct Failure;

class Exchange {
 public:
  // On a device with native streams the exchange enqueues its own work, in the order of the stream. Of the
  // functions below, the backend then calls only uses_other_threads(). Throws if the exchange has no such work.
  virtual void put(CUstream_st*) {
    throw Error(ErrorCode::kUnsupported, "this exchange cannot run on a native stream", {});
  }
  // Whether put() has other threads enqueue the work. A profiler then cannot tell which op the work belongs to.
  virtual bool uses_other_threads() const noexcept { return false; }
  // Advances as far as it can. It may spin briefly for the other ranks. In a worker thread (kWorker) it returns soon,
  // because the thread has other work. In a thread that waits for this op (kWaiter) it spins longer. Returns true if
  // the exchange is done, with or without success. One thread at a time calls it, but not always the same thread.
  enum class By : std::uint8_t { kWorker, kWaiter };
  virtual bool advance(By thread) noexcept = 0;
  // The submitting thread calls it at most once, before the first advance(), and only if no op is before it in its
  // stream. It may do a short first step without waiting, so that the other ranks observe it sooner. Returns true if
  // the exchange is done; advance() then returns true, too.
  virtual bool begin() noexcept { return false; }
  // Returns whether advance() would make progress. Cheap. The caller is the thread of the last advance(), or a thread
  // ordered after it.
  virtual bool can_advance() noexcept = 0;
  // Subscribes after an advance() that returned false: until the next advance() or finish(), the exchange calls
  // Subscriber::wake_up() when can_advance() may have changed. Rare polls are still needed, because failures send no
  // notification. Returns false if the exchange sends no notifications.
  virtual bool subscribe(base::Subscriber&) noexcept { return false; }
  // Returns whether all ranks have joined, so that data moves. Until then a device that models hardware queues keeps
  // the exchange's queue blocked.
  virtual bool moves() noexcept { return true; }
  // When its first step began, in now_ns(); 0: unknown, for example because no observer was attached then.
  virtual std::int64_t began_ns() const noexcept = 0;
  // Called once, at the end of the op. `cause`: the failure of its stream or device that prevented it; null: it ran to
  // its end. Throws its own failure. The object may delete itself: the caller does not use it afterwards.
  virtual void finish(const Failure* cause) = 0;

 protected:
  ~Exchange() = default;
};

struct DeviceCore;

// An exchange that was captured. Each launch of its plan is a new exchange, which the other ranks must match as they
// would match a call.
class ExchangeSource {
 public:
  virtual ~ExchangeSource() = default;
  // Throws if it cannot be launched on this device with these ranges. Called before any op of the launch is issued.
  virtual void require(const DeviceCore& core, Ranges reads, Ranges writes, Here here) const = 0;
  // Enqueues the op with a new exchange, and returns its position.
  virtual std::uint64_t enqueue(StreamState& stream, const Op& op) const = 0;
  // Exchanges with the same key run one after the other in the order of issue, even if they are in different streams.
  // The key identifies their communicator, which may be destroyed already: do not dereference it.
  virtual const void* order_key() const = 0;
};

}  // namespace slip::runtime
