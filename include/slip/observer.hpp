// Observer: receives a record of every event on streams. The trace, the race checker and the timeline are observers.
// Without an observer each runtime call costs one extra load.
#pragma once

#include <cstdint>

#include "slip/op.hpp"

namespace slip {

enum class RecordKind : std::uint8_t {
  kStreamOpen,
  kStreamClose,
  kSubmit,       // an op was queued; `op` and its lists are valid during the call only
  kRun,          // an op ran: engine, queue, started, ended
  kEventRecord,  // an event recorded (stream, position)
  kEventWait,    // from `position` on the stream waits for the other point (other_stream, other_position)
  kBarrier,      // like kEventWait, but caused by the legacy stream's rule or by the allocator
  kSync,         // the host waited for the other point (whole device: stream 0)
  kQuery,        // the host queried the other point and found it reached; orders later host work like kSync
  kHostRead,     // the host's access to `range` begins
  kHostWrite,
  kHostEnd,
  kAlloc,  // `range` was allocated; stream 0 if not stream-ordered
  kFree,
  kError,
};

struct Record {
  RecordKind kind = RecordKind::kSubmit;
  Engine engine = Engine::kNone;
  bool whole_device = false;  // kSync of a device
  std::uint32_t device = 0;
  std::int32_t queue = -1;         // hardware queue; -1: none
  std::uint64_t stream = 0;        // id of the stream
  std::uint64_t position = 0;      // in that stream; (stream, position) identifies an op
  std::uint64_t other_stream = 0;  // (other_stream, other_position): the point waited for
  std::uint64_t other_position = 0;
  std::uint64_t thread = 0;      // host thread, a small number
  Picos queued = 0;              // kSubmit: the time of the call
  Picos started = 0, ended = 0;  // kRun
  const Op* op = nullptr;        // kSubmit
  Range range = {};              // kHost*, kAlloc, kFree
  Name name = {};                // of the op, the stream or the buffer
  Here here = {};
};

class Observer {
 public:
  virtual ~Observer() = default;
  // The thread that causes the event calls it; several threads may call it at once. It must not throw and must not call
  // the runtime.
  virtual void on(const Record& record) = 0;
};

// An attached observer sees all devices of the process, and those that a forked child opens. It must still exist in the
// child, so it must not lie on the stack of a thread other than the one that forks. detach_observer() waits until no
// thread is inside `on`.
void attach_observer(Observer& observer);
void detach_observer(Observer& observer);
[[deprecated("use attach_observer")]] inline void attach(Observer& observer) { attach_observer(observer); }
[[deprecated("use detach_observer")]] inline void detach(Observer& observer) { detach_observer(observer); }

}  // namespace slip
