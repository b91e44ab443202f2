// Exchange: an op that needs others, a collective say. It goes on in steps; while it waits for the others its stream
// waits, but no thread does.
#pragma once

#include <cstdint>

#include "base/sync.hpp"

namespace slip {

struct Failure;

class Exchange {
 public:
  // Goes on as far as it can, for the others perhaps a moment longer: a worker may have other things to do, who waits
  // for this very op has not. True: done, with or without success. One thread at a time, but not always the same.
  enum class By : std::uint8_t { kWorker, kWaiter };
  virtual bool advance(By thread) noexcept = 0;
  // Begins by the thread that enqueued it, if that is short and waits for nobody: the others see it sooner. True: done,
  // and advance() says so again. At most once, before the first advance(), and when nothing is before it in its stream.
  virtual bool begin() noexcept { return false; }
  // Whether advance() would get on. Cheap; by the same thread as the last advance(), or one ordered after it.
  virtual bool can_advance() noexcept = 0;
  // After an advance() that was not the last: from now until the next advance(), or finish(), `sleeper` is told when
  // can_advance() may have changed, so that nobody need look again and again. Now and then is still needed: failures
  // are not told. False: nobody tells.
  virtual bool tell(Sleeper&) noexcept { return false; }
  // Whether all others have come, so that it moves. Devices that model hardware queues hold theirs until then.
  virtual bool moves() noexcept { return true; }
  // When its first step began, in now_ns(); 0: nobody watched then.
  virtual std::int64_t began_ns() const noexcept = 0;
  // Once, as the op's end. `cause`: why its stream or device had failed, so that it did not run to its end; null if it
  // did. Throws what went wrong; the object belongs to nobody afterwards.
  virtual void finish(const Failure* cause) = 0;

 protected:
  ~Exchange() = default;
};

}  // namespace slip
