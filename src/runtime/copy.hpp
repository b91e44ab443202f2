// Copies and fills: their checks, the engine that runs them, and when they block the host (rules 32-43, 73).
#pragma once

#include "runtime/core.hpp"
#include "slip/observer.hpp"

namespace slip::runtime {

// Throws if the ranges differ in size or overlap.
void require_copy(const Range& to, const Range& from, Here here);
// StreamRef::copy and fill.
void copy_async(StreamState& stream, Range to, Range from, Name name, Here here);
void fill_async(StreamState& stream, Range to, unsigned char value, Name name, Here here);
// Device::copy and fill, in the default stream.
void copy_sync(StreamState& stream, Range to, Range from, Here here);
void fill_sync(StreamState& stream, Range to, unsigned char value, Here here);

// Stream-ordered free, and the memory records for observers.
void free_in_order(StreamState& stream, Range range, Here here);
void notify_memory(RecordKind kind, Range range, StreamState* stream, Here here);

}  // namespace slip::runtime
