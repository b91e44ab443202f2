// Copies and fills, and the records of memory. See runtime/core.hpp.
#include <cstring>

#include "base/fail.hpp"
#include "base/thread.hpp"
#include "runtime/observers.hpp"
#include "runtime/pool.hpp"

namespace slip::runtime {
namespace {

const Name kCopyName("copy"), kFillName("fill");

// Uploads of pageable memory up to this size are staged; larger ones block the host. Measured on an H200.
constexpr std::size_t kStagedBytes = std::size_t{1} << 20;

bool on_host(const Range& range) { return range.block->kind != MemoryKind::kDevice; }
bool pageable(const Range& range) { return range.block->kind == MemoryKind::kPageable; }
bool peers(const Range& to, const Range& from) {
  return !on_host(to) && !on_host(from) && to.block->core != from.block->core;
}

Engine engine_of(const Range& to, const Range& from) {
  if (on_host(from) && !on_host(to)) return Engine::kCopyIn;
  if (!on_host(from) && !on_host(to) && !peers(to, from)) return Engine::kCompute;  // within the device
  return Engine::kCopyOut;
}

std::uint64_t submit_copy(StreamState& stream, const Range& to, const Range& from, Name name, Here here) {
  return issue(stream, {.kind = OpKind::kCopy,
                        .engine = engine_of(to, from),
                        .name = name ? name : kCopyName,
                        .here = here,
                        .reads = std::span<const Range>(&from, 1),
                        .writes = std::span<const Range>(&to, 1),
                        .cost = {.bytes = to.bytes}});
}

// Makes the staged source of a copy a separate buffer, also for observers. It exists only until the copy is submitted:
// the queued op holds addresses, not blocks.
class StagedSource : base::NoCopy {
 public:
  StagedSource(const StreamState& stream, const Range& from, std::byte* data)
      // Not wrapped: its address has no meaning for observers.
      : block_(take_block(stream.core, MemoryKind::kPinned, data, from.bytes, from.block->name)) {}
  ~StagedSource() { drop_block(block_); }
  Range range() const { return {block_, block_->id.load(std::memory_order_relaxed), 0, block_->bytes}; }

 private:
  Block* const block_;
};

// Copies the source to staging memory now, so the host may change the source as soon as this returns. HostAccess
// reports to observers that the host reads the source (rules 36, 38-40).
void upload_staged(StreamState& stream, const Range& to, const Range& from, Name name, Here here) {
  Staging& staging = *stream.core->staging;
  std::byte* data = staging.take(from.bytes);
  {
    const HostAccess read(from, false, here);
    std::memcpy(data, address(from), from.bytes);
  }
  std::uint64_t position = 0;
  try {
    position = submit_copy(stream, to, StagedSource(stream, from, data).range(), name, here);
  } catch (...) {
    staging.give(data, from.bytes, {&stream, 0});  // position 0 is always reached
    throw;
  }
  staging.give(data, from.bytes, {&stream, position});
}

// For native devices: the driver stages the data or blocks the host.
void copy_pageable_natively(StreamState& stream, const Range& to, const Range& from, Name name, Here here) {
  if (pageable(from)) {
    const HostAccess read(from, false, here);
    submit_copy(stream, to, StagedSource(stream, from, address(from)).range(), name, here);
  } else {
    wait_for(*stream.core, &stream, submit_copy(stream, to, from, name, here), 0, here);
  }
}

void refuse_capture(const StreamState& stream, const char* what, Here here) {
  if (stream.capture.load(std::memory_order_acquire))
    base::fail(ErrorCode::kCaptureUnsupported, here, "{} cannot be captured", what);
}

// Both ends are host memory: the host copies (rule 36).
void copy_on_host(StreamState& stream, const Range& to, const Range& from, Here here) {
  refuse_capture(stream, "a copy between host buffers (the host makes it)", here);
  // The record gives the copy a position in the stream, ordered after work of the legacy stream. A wait for the stream
  // alone would miss that work.
  wait_for(*stream.core, &stream, issue(stream, {.kind = OpKind::kRecord, .here = here}), 0, here);
  const HostAccess read(from, false, here), write(to, true, here);
  std::memcpy(address(to), address(from), to.bytes);
}

// In the legacy stream a copy between devices is a barrier on both devices (rule 73). It waits for the legacy stream of
// the other device, and that stream waits for the copy. Observers get these waits as implicit ones (launch_edge).
std::uint64_t copy_between(StreamState& stream, const Range& to, const Range& from, Name name, Here here) {
  DeviceCore* other = to.block->core == stream.core ? from.block->core : to.block->core;
  if (!stream.legacy || other == stream.core || stream.core->native) return submit_copy(stream, to, from, name, here);
  const std::uint64_t before = issue(*other->legacy, {.kind = OpKind::kRecord, .here = here});
  issue(stream, {.kind = OpKind::kWait, .launch_edge = true, .here = here, .point = {other->legacy, before}});
  const std::uint64_t after = submit_copy(stream, to, from, name, here);
  issue(*other->legacy, {.kind = OpKind::kWait, .launch_edge = true, .here = here, .point = {&stream, after}});
  return after;
}

}  // namespace

void require_copy(const Range& to, const Range& from, Here here) {
  require_range(to, "copy destination", here);
  require_range(from, "copy source", here);
  if (to.bytes != from.bytes)
    base::fail(ErrorCode::kInvalidValue, here, "copy of {} bytes into a range of {} bytes", from.bytes, to.bytes);
  const std::byte* a = address(to);
  const std::byte* b = address(from);
  if (a < b + from.bytes && b < a + to.bytes)
    base::fail(ErrorCode::kInvalidValue, here, "copy within buffer '{}' overlaps: {} bytes from offset {} to offset {}",
               to.block->name.text(), to.bytes, from.offset, to.offset);
}

void copy_async(StreamState& stream, Range to, Range from, Name name, Here here) {
  require_copy(to, from, here);
  require_usable(*stream.core, here);
  if (on_host(to) && on_host(from)) return copy_on_host(stream, to, from, here);
  if (pageable(to) || pageable(from)) {
    refuse_capture(stream, "a copy of pageable memory (use pinned memory)", here);
    if (stream.core->native) return copy_pageable_natively(stream, to, from, name, here);
    const PageableCopy rule = stream.core->options.pageable;
    const bool stage =
        pageable(from) && (rule == PageableCopy::kStage || (rule == PageableCopy::kAuto && from.bytes <= kStagedBytes));
    if (stage) return upload_staged(stream, to, from, name, here);
    wait_for(*stream.core, &stream, submit_copy(stream, to, from, name, here), 0, here);
    return;
  }
  if (stream.core->options.legacy_implicit_sync && !on_host(to) && !on_host(from))
    wait_for(*stream.core, nullptr, kEverything, 0, here);
  if (peers(to, from)) copy_between(stream, to, from, name, here);
  else submit_copy(stream, to, from, name, here);
}

void copy_sync(StreamState& stream, Range to, Range from, Here here) {
  require_copy(to, from, here);
  require_usable(*stream.core, here);
  refuse_capture(stream, "a synchronous copy (use StreamRef::copy)", here);
  if (on_host(to) && on_host(from)) return copy_on_host(stream, to, from, here);
  if (pageable(from) && !stream.core->native) {  // rule 32: waits for the stream, then until the source has been read
    wait_for(*stream.core, &stream, kEverything, 0, here);
    if (stream.core->options.pageable != PageableCopy::kBlock && from.bytes <= kStagedBytes)
      return upload_staged(stream, to, from, {}, here);
  }
  const std::uint64_t position =
      peers(to, from) ? copy_between(stream, to, from, {}, here) : submit_copy(stream, to, from, {}, here);
  // A copy between device buffers does not block the host (rule 35).
  if (on_host(to) || on_host(from)) wait_for(*stream.core, &stream, position, 0, here);
}

void fill_async(StreamState& stream, Range to, unsigned char value, Name name, Here here) {
  require_range(to, "fill", here);
  if (pageable(to)) throw Error(ErrorCode::kInvalidValue, "fill of pageable memory: use memset instead", here);
  if (stream.core->options.legacy_implicit_sync) wait_for(*stream.core, nullptr, kEverything, 0, here);
  issue(stream, {.kind = OpKind::kFill,
                 .engine = Engine::kCompute,
                 .value = value,
                 .name = name ? name : kFillName,
                 .here = here,
                 .writes = std::span<const Range>(&to, 1),
                 .cost = {.bytes = to.bytes}});
}

void fill_sync(StreamState& stream, Range to, unsigned char value, Here here) {
  fill_async(stream, to, value, {}, here);
  if (on_host(to)) wait_for(*stream.core, &stream, kEverything, 0, here);  // rule 43: blocks for pinned memory only
}

void free_in_order(StreamState& stream, Range range, Here here) {
  Block* block = range.block;
  if (stream.core->pool) {
    stream.core->pool->free(stream, *block, here);
  } else {
    void* data = block->data;
    issue(stream, {.kind = OpKind::kFree, .here = here, .address = &data, .bytes = block->bytes});
    stream.core->memory.use(-static_cast<std::ptrdiff_t>(block->bytes));
    stream.core->memory.release(block->bytes);
  }
  // Reported after the op was issued, so that the record gets a later position in the stream.
  if (observed_by(block->audience)) notify_memory(RecordKind::kFree, range, &stream, here);
  drop_block(block);
}

void notify_memory(RecordKind kind, Range range, StreamState* stream, Here here) {
  Record record{.kind = kind, .device = range.block->core->id, .range = range, .name = range.block->name, .here = here};
  record.thread = base::thread_index();
  if (!stream) return notify(record, range.block->audience);
  // The lock makes the submission and its record one step, as in submit_observed(). The allocation or free gets its own
  // position (is_allocation_mark()). On native devices the driver's allocation was already issued as an op, so a
  // kRecord is enough. Only an allocation in the legacy stream needs a kAlloc, because there a kRecord would be a
  // barrier.
  const bool mark = !stream->core->native || (stream->legacy && kind == RecordKind::kAlloc);
  const base::LockGuard lock(stream->observed);
  record.stream = stream->last_id;
  record.position = stream->core->backend->submit(*stream, {.kind = mark ? OpKind::kAlloc : OpKind::kRecord});
  notify(record, range.block->audience);
}

}  // namespace slip::runtime
