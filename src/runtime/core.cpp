#include "runtime/core.hpp"

#include "base/fail.hpp"
#include "base/slab.hpp"
#include "base/stream_text.hpp"
#include "runtime/capture.hpp"
#include "runtime/observers.hpp"
#include "runtime/pool.hpp"

namespace slip::runtime {

// --- failures ---

bool Sticky::put(Failure failure) {
  const base::LockGuard lock(lock_);
  if (set_.load(std::memory_order_relaxed)) return false;
  failure_ = std::move(failure);
  set_.store(true, std::memory_order_relaxed);
  return true;
}

void raise(const Failure& failure, Here here) { throw Error(failure.code, failure.text, here); }

constinit thread_local int detail::inside_op = 0;

void detail::raise_unusable(const DeviceCore& core, Here here) {
  if (inside_op != 0) throw Error(ErrorCode::kNotPermitted, "a kernel or host function may not call the runtime", here);
  raise(core.fault.value(), here);
}

// --- memory ---

bool MemoryLedger::reserve(std::size_t bytes) {
  const base::LockGuard lock(lock_);
  if (bytes > total_ || reserved_ > total_ - bytes) return false;
  reserved_ += bytes;
  if (reserved_ > peak_) peak_ = reserved_;
  return true;
}

Staging::~Staging() {
  for (const Piece& piece : pieces_) backend_.deallocate(MemoryKind::kPinned, piece.data, piece.bytes);
}

std::byte* Staging::take(std::size_t bytes) {
  const base::LockGuard lock(mutex_);
  Piece found;
  std::erase_if(pieces_, [&](const Piece& piece) {
    if (!backend_.reached(*piece.until.stream, piece.until.position)) return false;
    if (!found.data && piece.bytes == bytes) found = piece;  // uploads of one size often follow each other
    else backend_.deallocate(MemoryKind::kPinned, piece.data, piece.bytes);
    return true;
  });
  return found.data ? found.data : static_cast<std::byte*>(backend_.allocate(MemoryKind::kPinned, bytes));
}

Block* take_block(DeviceCore* core, MemoryKind kind, void* data, std::size_t bytes, Name name) {
  Block* block = base::Slab<Block>::take();
  block->core = core;
  block->data = static_cast<std::byte*>(data);
  block->bytes = bytes;
  block->kind = kind;
  block->owned = true;
  block->other_devices.store(0, std::memory_order_relaxed);
  block->origin = nullptr;
  block->audience = current_audience();
  block->name = name;
  static std::atomic<std::uint64_t> last_id{0};
  block->id.store(last_id.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  return block;
}

void drop_block(Block* block) {
  block->id.store(0, std::memory_order_relaxed);
  base::Slab<Block>::give(block);
}

void raise_out_of_memory(const DeviceCore& core, std::size_t bytes, Name name, Here here) {
  const MemoryInfo info = core.memory.info();
  base::fail(ErrorCode::kOutOfMemory, here, "asked for {} bytes of '{}' for '{}': {} of {} in use, {} free", bytes,
             core.info.label, name.text(), info.reserved, info.total, info.total - info.reserved);
}

[[gnu::hot]] void require_range(const Range& range, const char* what, Here here) {
  if (range.block == nullptr) base::fail(ErrorCode::kInvalidHandle, here, "{}: empty range, no buffer", what);
  // relaxed: freeing a buffer while another thread uses it is a race of the caller, which this check need not find.
  if (range.block->id.load(std::memory_order_relaxed) != range.id)
    base::fail(ErrorCode::kInvalidHandle, here, "{}: the buffer (id {}) was freed", what, range.id);
  if (range.offset > range.block->bytes || range.bytes > range.block->bytes - range.offset)
    base::fail(ErrorCode::kInvalidValue, here, "{}: bytes {} to {} of buffer '{}', which has {}", what, range.offset,
               range.offset + range.bytes, range.block->name.text(), range.block->bytes);
}

// --- streams ---

EventState* StreamState::make_timed_event() { return new Stamp; }

StreamState* open_stream(DeviceCore& core, const StreamSpec& spec) {
  StreamState* stream = core.backend->open_stream(spec);
  if (stream->core != &core)
    stream->core = &core;  // not written if equal: an Event of the former stream may read it concurrently
  stream->device_id.store(core.id, std::memory_order_release);  // release: see core_of() of event.cpp
  stream->flags = spec.flags;
  stream->priority = spec.priority;
  stream->legacy = spec.legacy;
  Observer* const audience = spec.wire ? detail::kNobody : current_audience();
  if (stream->audience != audience) stream->audience = audience;
  stream->failure.clear();
  static std::atomic<std::uint64_t> last_id{0};
  const std::uint64_t id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  stream->last_id = id;
  stream->label.set(id, spec.legacy ? Name("legacy") : spec.name);
  stream->id.store(id, std::memory_order_release);  // release: a thread that reads the id observes the fields above
  if (spec.name && !stream->audience) core.named_streams.add(id, spec.name);
  if (observed_by(stream->audience)) {
    const Name name = spec.legacy ? Name("legacy") : spec.name ? spec.name : Name(fmt::format("stream {}", id));
    notify({.kind = RecordKind::kStreamOpen, .device = core.id, .stream = id, .name = name}, stream->audience);
  }
  return stream;
}

void close_stream(StreamState& stream) noexcept {
  DeviceCore& core = *stream.core;
  if (core.forked) {  // a stream of the parent: the locks of its device may be held for ever
    stream.id.store(0, std::memory_order_relaxed);
    return;
  }
  Capture::forget(stream);
  const std::uint64_t id = stream.id.load(std::memory_order_relaxed);
  if (core.stream_failure.set() && core.stream_failure.value().stream == id) core.stream_failure.clear();
  core.named_streams.remove(id);
  if (observed_by(stream.audience)) {
    // The next op of the legacy stream waits for the work of this stream, which will be closed by then. So the
    // dependency is reported now, while the stream still has its id.
    if (stream.blocking() && core.legacy && !core.fault.set())
      notify({.kind = RecordKind::kBarrier,
              .device = core.id,
              .stream = core.legacy->last_id,
              .other_stream = id,
              .other_position = core.backend->submit(stream, {.kind = OpKind::kRecord})},
             stream.audience);
    notify({.kind = RecordKind::kStreamClose, .device = core.id, .stream = id}, stream.audience);
  }
  core.backend->close_stream(stream);  // from here on another thread may reuse it
}

std::string stream_text(const StreamState& stream) { return stream_text(stream, stream.last_id); }
std::string stream_text(const StreamState& stream, std::uint64_t id) {
  return base::stream_text(id, stream.label.name_of(id).text());
}

void raise_destroyed(const StreamState* stream, std::uint64_t id, Here here) {
  base::fail(ErrorCode::kInvalidHandle, here, "{} was destroyed",
             stream ? stream_text(*stream, id) : base::stream_text(id, {}));
}

Failure op_failure(ErrorCode code, OpKind kind, Name name, Here here, const char* why, std::uint64_t position) {
  // Without a line, `file` is empty, or the name of the function of Slipstream's libnccl.so.2 that the caller used.
  std::string place;
  if (here.line > 0) place = fmt::format(" issued at {}:{}", here.file, here.line);
  else if (here.file[0] != 0) place = fmt::format(" issued by {}", here.file);
  return {code, fmt::format("{} '{}'{} failed: {}", op_kind_name(kind), name.text(), place, why), position, here};
}

void notify_barrier(const StreamState& stream, std::uint64_t position, StreamPoint other, std::uint64_t other_id,
                    Name name, Here here) {
  notify({.kind = RecordKind::kBarrier,
          .device = stream.core->id,
          .stream = stream.last_id,
          .position = position,
          .other_stream = other_id != 0 ? other_id : other.stream->last_id,
          .other_position = other.position,
          .name = name,
          .here = here},
         stream.audience);
}

void fail_stream(StreamState& stream, Failure failure) {
  failure.stream = stream.id.load(std::memory_order_relaxed);
  const Failure copy = failure;
  if (!stream.failure.put(std::move(failure))) return;
  if (observed_by(stream.audience))
    notify({.kind = RecordKind::kError,
            .device = stream.core->id,
            .stream = stream.last_id,
            .position = copy.position,
            .name = copy.text,
            .here = copy.here},
           stream.audience);
  stream.core->stream_failure.put(copy);
}

// --- devices ---

DeviceCore::DeviceCore() {
  static std::atomic<std::uint32_t> counter{0};
  id = counter.fetch_add(1, std::memory_order_relaxed) + 1;
}

void drain(DeviceCore& core) noexcept {
  if (exiting() || core.forked) return;
  try {
    core.backend->wait(nullptr, kEverything, 0);
  } catch (const Error&) {  // CUDA: the program captures a stream, so that nothing can wait for it
  }
}

DeviceCore::~DeviceCore() {
  unregister_device(*this);
  if (!backend) return;
  // In a forked child the device's threads do not exist, and its locks may be held for ever: leak it.
  if (forked) {
    static_cast<void>(pool.release());
    static_cast<void>(staging.release());
    static_cast<void>(backend.release());
    return;
  }
  drain(*this);
  Capture::forget_all(*this);
  if (legacy) close_stream(*legacy);
  pool.reset();
  staging.reset();
  backend.reset();
}

}  // namespace slip::runtime
