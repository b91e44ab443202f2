#include "slip/buffer.hpp"

#include <fmt/format.h>

#include "base/terminal.hpp"
#include "base/thread.hpp"
#include "runtime/copy.hpp"
#include "runtime/core.hpp"
#include "runtime/exit.hpp"
#include "runtime/observers.hpp"

namespace slip {

Buffer::Buffer(std::shared_ptr<DeviceCore> core, Block* block)
    : core_(std::move(core)), range_{block, block->id.load(std::memory_order_relaxed), 0, block->bytes} {}

Buffer::Buffer(Buffer&& other) noexcept : core_(std::move(other.core_)), range_(other.range_) { other.range_ = {}; }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(core_, other.core_);
  std::swap(range_, other.range_);
  return *this;
}

Buffer::~Buffer() {
  if (range_.block) release();
}

// Ordinary memory is freed after waiting for all work of the device. Stream-ordered memory is freed in the stream that
// allocated it, if that stream still exists.
void Buffer::release() noexcept {
  Block* block = range_.block;
  if (core_->forked) return;  // memory of the parent: the child leaks its copy
  if (detail::inside_op != 0) {
    log_line(
        fmt::format("buffer '{}' ({} bytes) was freed inside a kernel or host function: it is never freed, a "
                    "thread cannot wait for itself",
                    block->name.text(), block->bytes));
    return;
  }
  StreamState* origin = block->origin;
  const auto in_order = [&] {
    return origin && origin->id.load(std::memory_order_acquire) == block->origin_id && !core_->fault.set() &&
           !origin->failure.set() && !origin->capture.load(std::memory_order_acquire) &&
           !(origin->legacy && core_->blocking_captures.load(std::memory_order_relaxed) > 0);
  };
  try {
    if (in_order()) {
      free_in_order(*origin, range_, Here::at());
      return;
    }
  } catch (const std::exception& error) {
    log_line(fmt::format("freeing buffer '{}': {}", block->name.text(), error.what()));
  }
  drain(*core_);
  if (const std::uint64_t guests = block->guests.load(std::memory_order_relaxed)) {
    for (const auto& core : open_devices()) {
      if (core != core_ && (guests >> core->id % 64 & 1) != 0) drain(*core);
    }
  }
  if (observed_by(block->audience)) notify_memory(RecordKind::kFree, range_, nullptr, {});
  const std::size_t bytes = block->origin && core_->pool ? block->capacity : block->bytes;
  if (block->owned) {
    core_->backend->deallocate(block->kind, block->data, bytes);
    if (block->kind == MemoryKind::kDevice) {
      core_->memory.use(-static_cast<std::ptrdiff_t>(bytes));
      core_->memory.release(bytes);
    }
  }
  drop_block(block);
}

MemoryKind Buffer::kind() const {
  require_range(range_, "buffer", {});
  return range_.block->kind;
}

Name Buffer::name() const {
  require_range(range_, "buffer", {});
  return range_.block->name;
}

void* Buffer::native() const {
  require_range(range_, "buffer", {});
  return range_.block->data;
}

Range Buffer::host_range(std::size_t offset, std::size_t bytes, std::size_t alignment, Here here) const {
  require_range(range_, "host view", here);
  const Range part{range_.block, range_.id, offset, bytes};
  require_range(part, "host view", here);
  if (reinterpret_cast<std::uintptr_t>(address(part)) % alignment != 0)
    throw Error(Code::kInvalidValue,
                fmt::format("host view at byte {} of buffer '{}': elements of this type stand at multiples of {}",
                            offset, range_.block->name.text(), alignment),
                here);
  return part;
}

HostAccess::HostAccess(Range range, bool writes, Here here)
    : range_(range), data_(nullptr), writes_(writes), here_(here) {
  require_range(range, writes ? "host_write" : "host_read", here);
  if (range.block->kind == MemoryKind::kDevice)
    throw Error(
        Code::kInvalidValue,
        fmt::format("the host cannot touch device buffer '{}': copy it to pinned memory", range.block->name.text()),
        here);
  data_ = address(range);
  if (observed_by(range.block->audience))
    notify({.kind = writes ? RecordKind::kHostWrite : RecordKind::kHostRead,
            .device = range.block->core->id,
            .thread = thread_index(),
            .range = range,
            .name = range.block->name,
            .here = here},
           range.block->audience);
}

HostAccess::~HostAccess() {
  if (observed_by(range_.block->audience))
    notify({.kind = RecordKind::kHostEnd,
            .device = range_.block->core->id,
            .thread = thread_index(),
            .range = range_,
            .name = range_.block->name,
            .here = here_},
           range_.block->audience);
}

}  // namespace slip
