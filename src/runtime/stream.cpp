#include "slip/stream.hpp"

#include "base/fail.hpp"
#include "runtime/capture.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "runtime/pool.hpp"
#include "slip/plan.hpp"

namespace slip::runtime {
namespace {

const Name kHostName("host function"), kWaitName("wait value"), kWriteName("write value");

// For drivers that allocate in stream order: the runtime only enforces the memory limit.
void* alloc_native(StreamState& stream, std::size_t bytes, Name name, Here here) {
  MemoryLedger& memory = stream.core->memory;
  if (!memory.reserve(bytes)) raise_out_of_memory(*stream.core, bytes, name, here);
  void* data = nullptr;
  try {
    issue(stream, {.kind = OpKind::kAlloc, .name = name, .here = here, .address = &data, .bytes = bytes});
  } catch (...) {
    memory.release(bytes);
    throw;
  }
  memory.use(static_cast<std::ptrdiff_t>(bytes));
  return data;
}

}  // namespace

[[gnu::hot]] void require_kernel_range(DeviceCore& core, const Range& range, Name kernel, Here here) {
  require_range(range, kernel.c_str(), here);
  Block& block = *range.block;
  if (block.core == &core && block.kind != MemoryKind::kPageable) [[likely]]
    return;
  if (block.kind != MemoryKind::kPageable) note_other_device(block, core);
  if (block.kind == MemoryKind::kPinned) return;
  if (block.kind == MemoryKind::kPageable)
    base::fail(ErrorCode::kInvalidValue, here,
               "kernel '{}' uses pageable buffer '{}': allocate it pinned, or copy it to the device", kernel.text(),
               block.name.text());
  if (core.peers.contains(block.core->id)) return;
  base::fail(ErrorCode::kPeerAccessNotEnabled, here,
             "kernel '{}' on device {} uses buffer '{}' of device {}: call enable_peer_access first", kernel.text(),
             core.id, block.name.text(), block.core->id);
}

void require_flag(const Range& flag, const char* what, Here here) {
  require_range(flag, what, here);
  if (flag.bytes != sizeof(std::uint32_t) ||
      reinterpret_cast<std::uintptr_t>(address(flag)) % sizeof(std::uint32_t) != 0)
    base::fail(ErrorCode::kInvalidValue, here,
               "{}: a flag must have 4 bytes at an address that is a multiple of 4; this one has {} bytes at {} of its "
               "buffer, address {}",
               what, flag.bytes, flag.offset, static_cast<const void*>(address(flag)));
  if (flag.block->kind == MemoryKind::kPageable)
    base::fail(ErrorCode::kInvalidValue, here, "{}: the flag must be in pinned or device memory", what);
}

}  // namespace slip::runtime

namespace slip {
using namespace runtime;

runtime::StreamState* StreamRef::state(Here here) const {
  // relaxed: the program passed the reference from the opening thread to this one, which orders the other fields. On
  // aarch64 an acquire load would also wait for the release store of the last op, which made a submission 60 ns longer.
  if (!state_ || state_->id.load(std::memory_order_relaxed) != id_) [[unlikely]]
    runtime::raise_destroyed(state_, id_, here);
  return state_;
}

[[gnu::hot]] void StreamRef::launch(const Kernel& kernel, const Operands& operands, const Cost& cost, Here here) const {
  runtime::StreamState& stream = *state(here);
  const Name name = operands.name ? operands.name : kernel.name;
  for (const Range& range : operands.reads) runtime::require_kernel_range(*stream.core, range, name, here);
  for (const Range& range : operands.writes) runtime::require_kernel_range(*stream.core, range, name, here);
  if (!(cost.width > 0.0 && cost.width <= 1.0)) [[unlikely]]
    base::fail(ErrorCode::kInvalidValue, here, "kernel '{}': width {} is not in (0, 1]", name.text(), cost.width);
  runtime::issue(stream, {.kind = OpKind::kKernel,
                          .engine = Engine::kCompute,
                          .opaque = operands.reads.empty() && operands.writes.empty(),
                          .kernel = &kernel,
                          .name = name,
                          .here = here,
                          .reads = operands.reads,
                          .writes = operands.writes,
                          .scalars = operands.scalars,
                          .cost = cost});
}

void StreamRef::copy(Range to, Range from, Name name, Here here) const {
  runtime::copy_async(*state(here), to, from, name, here);
}

void StreamRef::fill(Range to, unsigned char value, Name name, Here here) const {
  runtime::fill_async(*state(here), to, value, name, here);
}

void StreamRef::host(std::function<void()> function, Name name, Here here) const {
  host(std::move(function), Operands{.name = name}, {}, here);
}

void StreamRef::host(std::function<void()> function, const Operands& touches, const Cost& cost, Here here) const {
  if (!function) throw Error(ErrorCode::kInvalidValue, "empty host function", here);
  for (const Range& range : touches.reads) runtime::require_range(range, "host", here);
  for (const Range& range : touches.writes) runtime::require_range(range, "host", here);
  if (cost.time < 0)
    base::fail(ErrorCode::kInvalidValue, here, "host function '{}': its time of {} ps is below 0", touches.name.text(),
               cost.time);
  runtime::issue(*state(here), {.kind = OpKind::kHost,
                                .engine = Engine::kHost,
                                .opaque = touches.reads.empty() && touches.writes.empty(),
                                .name = touches.name ? touches.name : kHostName,
                                .here = here,
                                .reads = touches.reads,
                                .writes = touches.writes,
                                .cost = cost,
                                .host = &function});
}

void StreamRef::take_record(Event& event, runtime::EventState* native, Here here) const {
  EventHandle handle(native);
  runtime::StreamState& stream = *state(here);
  if (event.device_ != 0 && event.device_ != stream.core->id)
    base::fail(ErrorCode::kInvalidHandle, here, "an event of device {} cannot be recorded in {} of device {} (rule 67)",
               event.device_, runtime::stream_text(stream, id_), stream.core->id);
  runtime::Capture* capture = stream.capture.load(std::memory_order_relaxed);  // relaxed: as in issue()
  const std::uint64_t position = capture ? capture->mark(stream)
                                 : native
                                     ? runtime::issue(stream, {.kind = OpKind::kRecord, .here = here, .event = native})
                                     : runtime::issue_record(stream, here);
  event.point_ = {&stream, position};  // last: an event that could not be recorded stays unchanged
  event.capture_ = capture ? capture->id() : 0;
  event.device_ = stream.core->id;
  event.stream_ = id_;
  event.handle_ = std::move(handle);
}

Event StreamRef::record(Here here) const {
  Event event;
  take_record(event, nullptr, here);
  return event;
}

void StreamRef::record(Event& event, Here here) const { take_record(event, nullptr, here); }

TimedEvent StreamRef::record_timed(Here here) const {
  TimedEvent event;
  record(event, here);
  return event;
}

void StreamRef::record(TimedEvent& event, Here here) const {
  runtime::StreamState& stream = *state(here);
  // An event state without other owners is reused, so that a program which records the same events in each iteration
  // allocates nothing.
  runtime::EventState* native = event.handle_.get();
  if (native && event.device_ == stream.core->id && native->has_one_owner() && native->renewable()) native->retain();
  else native = stream.make_timed_event();
  take_record(event, native, here);
}

void StreamRef::wait(const Event& event, Here here) const {
  runtime::StreamState& stream = *state(here);
  if (!event.recorded()) {  // rule 52: a wait on a never-recorded event waits for nothing
    runtime::require_usable(*stream.core, here);
    runtime::refuse_implicit_capture(stream, here);
    return;
  }
  runtime::Capture* current = stream.capture.load(std::memory_order_relaxed);  // relaxed: as in issue()
  if (event.capture_ != 0) {
    const std::shared_ptr<runtime::Capture> capture = runtime::Capture::find(event.capture_);
    if (!capture)
      throw Error(ErrorCode::kCaptureIsolation, "the event was recorded in a capture that has ended (rule 98)", here);
    if (current && current != capture.get()) {
      current->invalidate("a wait would have merged it with another capture");
      capture->invalidate("a wait would have merged another capture with it");
      base::fail(ErrorCode::kCaptureMerge, here, "the event belongs to another capture than {}",
                 runtime::stream_text(stream, id_));
    }
    if (stream.legacy) {
      capture->invalidate("the legacy stream waited for one of its events");
      throw Error(ErrorCode::kCaptureImplicit, "the legacy stream cannot join a capture", here);
    }
    capture->wait(stream, event.point_.position);
    return;
  }
  if (current) {
    current->invalidate("one of its streams waited for an event recorded outside it");
    throw Error(ErrorCode::kCaptureIsolation, "a capturing stream cannot wait for work outside the capture (rule 98)",
                here);
  }
  runtime::issue_wait(stream, event.point_, event.stream_, event.handle_.get(), here);
  if (stream.core->pool) stream.core->pool->note_wait(stream, event.point_);
}

void StreamRef::wait_value(Range flag, std::uint32_t value, Name name, Here here) const {
  runtime::require_flag(flag, "wait_value", here);
  Op op{.kind = OpKind::kWaitValue, .value = value, .name = name ? name : kWaitName, .here = here};
  op.reads = std::span<const Range>(&flag, 1);
  runtime::issue(*state(here), op);
}

void StreamRef::write_value(Range flag, std::uint32_t value, Name name, Here here) const {
  runtime::require_flag(flag, "write_value", here);
  Op op{.kind = OpKind::kWriteValue, .value = value, .name = name ? name : kWriteName, .here = here};
  op.writes = std::span<const Range>(&flag, 1);
  runtime::issue(*state(here), op);
}

Buffer StreamRef::alloc(std::size_t bytes, Name name, Here here) const {
  runtime::StreamState& stream = *state(here);
  runtime::require_stream(stream, here);
  if (bytes == 0) throw Error(ErrorCode::kInvalidValue, "alloc of 0 bytes", here);
  if (stream.capture.load(std::memory_order_acquire))
    throw Error(ErrorCode::kCaptureUnsupported,
                "a stream-ordered allocation cannot be captured: allocate the buffer before the capture, and bind it",
                here);
  runtime::Block* block = runtime::take_block(stream.core, MemoryKind::kDevice, nullptr, bytes, name);
  block->origin = &stream;
  block->origin_id = id_;
  try {
    if (stream.core->pool) stream.core->pool->alloc(stream, *block, here);
    else block->data = static_cast<std::byte*>(alloc_native(stream, bytes, name, here));
  } catch (...) {
    runtime::drop_block(block);
    throw;
  }
  Buffer buffer(stream.core->shared_from_this(), block);
  if (runtime::observed_by(block->audience)) runtime::notify_memory(RecordKind::kAlloc, buffer.range(), &stream, here);
  return buffer;
}

void StreamRef::free(Buffer&& buffer, Here here) const {
  runtime::StreamState& stream = *state(here);
  if (!buffer) throw Error(ErrorCode::kInvalidHandle, "cannot free an empty buffer", here);
  runtime::require_range(buffer.range(), "free", here);
  runtime::Block& block = *buffer.range().block;
  if (!block.origin)
    base::fail(ErrorCode::kInvalidValue, here,
               "buffer '{}' was not allocated in stream order: destroy the Buffer instead", block.name.text());
  if (block.core != stream.core)
    base::fail(ErrorCode::kInvalidHandle, here, "buffer '{}' belongs to device {}, but {} to device {}",
               block.name.text(), block.core->id, runtime::stream_text(stream, id_), stream.core->id);
  if (stream.capture.load(std::memory_order_acquire))
    throw Error(ErrorCode::kCaptureUnsupported,
                "a stream-ordered free cannot be captured: free before or after the capture", here);
  runtime::free_in_order(stream, buffer.range(), here);
  buffer.range_ = {};
  buffer.core_.reset();
}

void StreamRef::sync(Here here) const {
  runtime::StreamState& stream = *state(here);
  runtime::wait_for(*stream.core, &stream, runtime::kEverything, 0, here);
}

bool StreamRef::sync_for(std::chrono::nanoseconds limit, Here here) const {
  runtime::StreamState& stream = *state(here);
  return runtime::wait_for(*stream.core, &stream, runtime::kEverything, runtime::deadline_of(limit), here);
}

bool StreamRef::query(Here here) const {
  runtime::StreamState& stream = *state(here);
  return runtime::is_reached(*stream.core, stream, runtime::kEverything, here);
}

void StreamRef::begin_capture(Here here) const {
  runtime::StreamState& stream = *state(here);
  runtime::require_usable(*stream.core, here);
  runtime::Capture::begin(stream, here);
}

bool StreamRef::capturing() const { return state()->capture.load(std::memory_order_acquire) != nullptr; }

StreamFlags StreamRef::flags() const { return state()->flags; }
int StreamRef::priority() const { return state()->priority; }
CUstream_st* StreamRef::native() const { return state()->native(); }

Stream::~Stream() {
  if (state_ && id_ != 0 && state_->id.load(std::memory_order_acquire) == id_) runtime::close_stream(*state_);
}

}  // namespace slip
