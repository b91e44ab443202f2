// Notifies observers of ops. Without observers, observed() is the only cost: one load.
#pragma once

#include <atomic>

#include "base/sync.hpp"
#include "slip/observer.hpp"
#include "slip/op.hpp"

namespace slip::runtime {

namespace detail {
extern std::atomic<int> observer_count;
extern Observer* const kNobody;  // ignores every record
}  // namespace detail

// relaxed: an observer that is being attached may miss concurrent ops; no data depends on the count.
inline bool observed() { return detail::observer_count.load(std::memory_order_relaxed) != 0; }

// The audience of a stream or a buffer. Null: all attached observers; otherwise only this observer.
inline bool observed_by(const Observer* audience) { return observed() && audience != detail::kNobody; }

void notify(const Record& record);
void notify(const Record& record, Observer* audience);
void notify(Record&& record, Observer* audience);  // sets record.thread: this thread

// Keeps the library's own work, such as measuring costs or simulating a plan, out of the program's trace. While a
// PrivateScope exists, the devices, streams and buffers that this thread makes do not report to the attached observers.
// They report to `only`; if it is null, to no observer. They must be destroyed before `only` is. On cuda devices `only`
// gets kRun records of host functions only.
class PrivateScope : base::NoCopy {
 public:
  explicit PrivateScope(Observer* only = nullptr);
  ~PrivateScope();

 private:
  Observer* const before_;
  const bool counted_;
};
Observer* current_audience();  // of streams and buffers that this thread makes now

void start_observers();   // those that environment variables request, once; defined in watch/env_observers.cpp
void forget_notifiers();  // in a child of fork(): the notifying threads of the parent do not exist here

// An event record that the runtime itself issues, only to get the current end of the stream, including the waits issued
// so far. The runtime's own submissions must not change the order of the program's work. So in a blocking stream such a
// record does not wait for work of the legacy stream. (On an H200, syncing a blocking stream does not wait for that
// work either.)
inline bool is_bookkeeping(const Op& op) { return op.kind == OpKind::kRecord && !op.event && op.here.line == 0; }

// An op that gives an allocation its own position in the stream. So observers can distinguish events recorded before it
// from events recorded after it. It is no barrier in the legacy stream and waits for none (rule 8, observed
// on an H200). A free is a barrier, by the record that the pool issues.
inline bool is_allocation_mark(const Op& op) { return op.kind == OpKind::kAlloc; }

namespace detail {
void notify_submission(std::uint64_t position);  // reports this thread's submission, unless it is reported already
}

// Backends call it when the op has its position and no other thread can see the op yet. Because of this op, an op of
// another thread may get a barrier. Observers require that this op is reported before that barrier.
inline void notify_submitted(std::uint64_t position) {
  if (observed()) [[unlikely]]
    detail::notify_submission(position);
}

}  // namespace slip::runtime
