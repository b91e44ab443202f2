// Exchange: an op that needs other ranks, for instance a collective. It advances in steps; while it waits for other
// ranks its stream waits, but no thread has to. ExchangeSource: an exchange captured in a plan.
#pragma once

#include <cstdint>

#include "base/sync.hpp"
#include "slip/op.hpp"

namespace slip {

struct Failure;

class Exchange {
 public:
  // Advances as far as it can. It may wait a moment for the other ranks: a worker (kWorker) has other work to run, but
  // a thread that waits for this very op (kWaiter) has not, so it may wait longer. True: done, with or without success.
  // One thread at a time, but not always the same.
  enum class By : std::uint8_t { kWorker, kWaiter };
  virtual bool advance(By thread) noexcept = 0;
  // Called by the thread that submits it, at most once, before the first advance(), if no op is before it in its
  // stream. It may do a short first step without waiting, so that the other ranks see it sooner. True: done; advance()
  // then returns true, too.
  virtual bool begin() noexcept { return false; }
  // Whether advance() would make progress. Cheap. Called by the thread of the last advance(), or one ordered after it.
  virtual bool can_advance() noexcept = 0;
  // Subscribes after an advance() that returned false: until the next advance() or finish(), the exchange calls
  // Subscriber::wake_up() when can_advance() may have changed. Rare polls are still needed, because failures send no
  // notification. False: there will be no notifications.
  virtual bool subscribe(Subscriber&) noexcept { return false; }
  // Whether all ranks have joined, so that data moves. Devices that model hardware queues block theirs until then.
  virtual bool moves() noexcept { return true; }
  // When its first step began, in now_ns(); 0: there was no observer then.
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
  // Exchanges with the same line run one after the other, in the order of issue, in any streams.
  virtual const void* line() const = 0;
};

}  // namespace slip
