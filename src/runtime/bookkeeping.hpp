// What observers need of a submission. The runtime's own submissions are no calls of the program, so they must not
// change what the program does.
#pragma once

#include "runtime/observers.hpp"
#include "slip/op.hpp"

namespace slip {

// A question for the stream's present end, with the waits issued so far. In a blocking stream it does not wait for
// legacy work: on an H200 the sync of a blocking stream does not either.
inline bool is_bookkeeping(const Op& op) { return op.kind == OpKind::kRecord && !op.event && op.here.line == 0; }

// Where an allocation or a free stands in its stream, for observers: a position of its own, so that an event recorded
// before it differs from one recorded after it. No barrier in the legacy stream, and behind none (rule 8 as seen on an
// H200); a free is one, by the record that the pool issues.
inline bool is_allocation_mark(const Op& op) { return op.kind == OpKind::kAlloc; }

namespace detail {
void tell_submission(std::uint64_t position);  // of this thread, if it was not told yet
}

// Backends call it when the op has its position and no other thread can see the op: barriers that another thread's op
// gets because of this one are then told after it. A barrier that is told first would miss what this op comes after.
inline void tell_submitted(std::uint64_t position) {
  if (observed()) [[unlikely]]
    detail::tell_submission(position);
}

}  // namespace slip
