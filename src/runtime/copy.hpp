// Copies and fills: what they check, which engine runs them, and when they hold the host (rules 32-43, 73).
#pragma once

#include "runtime/core.hpp"
#include "slip/observer.hpp"

namespace slip {

// That the ranges have one size and do not overlap.
void require_copy(const Range& to, const Range& from, Here here);
// StreamRef::copy and fill.
void copy_async(StreamState& stream, Range to, Range from, Name name, Here here);
void fill_async(StreamState& stream, Range to, unsigned char value, Name name, Here here);
// Device::copy and fill, in the default stream.
void copy_sync(StreamState& stream, Range to, Range from, Here here);
void fill_sync(StreamState& stream, Range to, unsigned char value, Here here);

// Stream-ordered free, and the records of memory.
void free_in_order(StreamState& stream, Range range, Here here);
void tell_memory(RecordKind kind, Range range, StreamState* stream, Here here);

}  // namespace slip
