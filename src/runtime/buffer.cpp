#include "slip/buffer.hpp"

#include "base/fail.hpp"
#include "base/memory_end.hpp"
#include "base/terminal.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"

namespace slip {

constinit thread_local int runtime::detail::cannot_wait = 0;

static const runtime::Block& block_of(const Range& range) {
  runtime::require_range(range, "buffer", {});
  return *range.block;
}

Buffer::Buffer(std::shared_ptr<runtime::DeviceCore> core, runtime::Block* block)
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

// Stream-ordered memory is freed in the stream that allocated it, if that stream still exists and can run the free.
// Other memory is freed after waiting for all work of its device and of the other devices that used it.
void Buffer::release() noexcept {
  runtime::Block* block = range_.block;
  if (core_->forked) return;  // memory of the parent: the child leaks its copy
  const auto leak = [&] {
    base::log_line(
        fmt::format("buffer '{}' ({} bytes) was destroyed inside a kernel or host function: its memory is leaked, "
                    "because this thread cannot wait for the op that it runs",
                    block->name.text(), block->bytes));
  };
  if (runtime::detail::inside_op != 0) return leak();
  runtime::StreamState* origin = block->origin;
  const auto in_order = [&] {
    return origin && origin->id.load(std::memory_order_acquire) == block->origin_id && !core_->fault.set() &&
           !origin->failure.set() && !origin->capture.load(std::memory_order_acquire) &&
           !(origin->legacy && core_->captures.blocking.load(std::memory_order_relaxed) > 0);
  };
  try {
    if (in_order()) {
      runtime::free_in_order(*origin, range_, Here::at());
      return;
    }
  } catch (const std::exception& error) {
    base::log_line(fmt::format("freeing buffer '{}': {}", block->name.text(), error.what()));
  }
  if (runtime::detail::cannot_wait != 0) return leak();  // this thread destroys a host function that owns the buffer
  runtime::drain(*core_);
  if (const std::uint64_t others = block->other_devices.load(std::memory_order_relaxed)) {
    for (const auto& core : runtime::open_devices()) {
      if (core != core_ && (others >> core->id % 64 & 1) != 0) runtime::drain(*core);
    }
  }
  if (runtime::observed_by(block->audience)) runtime::notify_memory(RecordKind::kFree, range_, nullptr, {});
  const std::size_t bytes = block->origin && core_->pool ? block->capacity : block->bytes;
  base::notify_memory_end(block->data, bytes);
  if (block->owned) {
    core_->backend->deallocate(block->kind, block->data, bytes);
    if (block->kind == MemoryKind::kDevice) {
      core_->memory.use(-static_cast<std::ptrdiff_t>(bytes));
      core_->memory.release(bytes);
    }
  }
  runtime::drop_block(block);
}

MemoryKind Buffer::kind() const { return block_of(range_).kind; }
Name Buffer::name() const { return block_of(range_).name; }
void* Buffer::native() const { return block_of(range_).data; }

Range Buffer::host_range(std::size_t offset, std::size_t bytes, std::size_t alignment, Here here) const {
  runtime::require_range(range_, "host view", here);
  const Range part{range_.block, range_.id, offset, bytes};
  runtime::require_range(part, "host view", here);
  if (reinterpret_cast<std::uintptr_t>(runtime::address(part)) % alignment != 0)
    base::fail(ErrorCode::kInvalidValue, here,
               "host view at byte {} of buffer '{}': elements of this type must be aligned to {} bytes", offset,
               range_.block->name.text(), alignment);
  return part;
}

HostAccess::HostAccess(Range range, bool writes, Here here)
    : range_(range), data_(nullptr), writes_(writes), here_(here) {
  runtime::require_range(range, writes ? "host_write" : "host_read", here);
  if (range.block->kind == MemoryKind::kDevice)
    base::fail(ErrorCode::kInvalidValue, here, "the host cannot access device buffer '{}': copy it to pinned memory",
               range.block->name.text());
  data_ = runtime::address(range);
  if (runtime::observed_by(range.block->audience))
    runtime::notify_memory(writes ? RecordKind::kHostWrite : RecordKind::kHostRead, range, nullptr, here);
}

HostAccess::~HostAccess() {
  if (runtime::observed_by(range_.block->audience))
    runtime::notify_memory(RecordKind::kHostEnd, range_, nullptr, here_);
}

}  // namespace slip
