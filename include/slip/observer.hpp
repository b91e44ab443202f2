// Observer: everything that happens on streams, as records. The trace, the race checker and the timeline are observers.
// With none attached the runtime pays for one load per call.
#pragma once

#include <cstdint>

#include "slip/op.hpp"

namespace slip {

enum class RecordKind : std::uint8_t {
  kStreamOpen,
  kStreamClose,
  kSubmit,       // an op was queued: `op` and its lists are valid during the call
  kRun,          // an op ran: engine, queue, started, ended
  kEventRecord,  // an event took the point
  kEventWait,    // the stream waits, from `position` on, for `other`
  kBarrier,      // the same, by the legacy stream's rule or inside the allocator
  kSync,         // the host waited for `other` (whole device: stream 0)
  kQuery,        // the host asked for `other` and it was reached: orders like kSync
  kHostRead,     // the host's access to `range` begins
  kHostWrite,
  kHostEnd,
  kAlloc,  // `range` came to be; stream 0 if not stream-ordered
  kFree,
  kError,
};

struct Record {
  RecordKind kind = RecordKind::kSubmit;
  Engine engine = Engine::kNone;
  bool whole_device = false;  // kSync of a device
  std::uint32_t device = 0;
  std::int32_t queue = -1;         // hardware queue, -1 where there is none
  std::uint64_t stream = 0;        // id of the stream
  std::uint64_t position = 0;      // in that stream; ops are known by (stream, position)
  std::uint64_t other_stream = 0;  // the point waited for
  std::uint64_t other_position = 0;
  std::uint64_t thread = 0;      // host thread, small numbers
  Picos queued = 0;              // kSubmit: when; kRun: unused
  Picos started = 0, ended = 0;  // kRun
  const Op* op = nullptr;        // kSubmit
  Range range = {};              // kHost*, kAlloc, kFree
  Name name = {};                // of the op, stream or buffer
  Here here = {};
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Called on the thread where it happened, several at once; must not throw and must not call the runtime.
  virtual void on(const Record& record) = 0;
};

// Attached observers see all devices of the process. Detaching waits until no call of `on` is under way.
void attach(Observer& observer);
void detach(Observer& observer);

}  // namespace slip
