#include "runtime/pool.hpp"

#include <algorithm>
#include <limits>

#include "base/fail.hpp"
#include "base/memory_end.hpp"

namespace slip::runtime {
namespace {
constexpr std::size_t kGranularity = 512;
constexpr std::size_t kWaitsKept = 64;  // per stream; if a wait is dropped, some memory is not reused
constexpr int kDepth = 8;               // recursion limit of ordered_after()

std::size_t rounded(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::size_t>::max() - kGranularity) return bytes;  // no device has that much
  return (std::max<std::size_t>(bytes, 1) + kGranularity - 1) / kGranularity * kGranularity;
}

// Returns memory to the system.
void give_back(DeviceCore& core, std::byte* data, std::size_t bytes) {
  base::notify_memory_end(data, bytes);
  core.backend->deallocate(MemoryKind::kDevice, data, bytes);
  core.memory.release(bytes);
}
}  // namespace

StreamPool::~StreamPool() {
  for (const FreeBlock& block : free_) give_back(core_, block.data, block.bytes);
}

void StreamPool::alloc(StreamState& stream, Block& block, Here here) {
  const std::size_t size = rounded(block.bytes);
  StreamPoint wait_for;
  FreeBlock memory{nullptr, size, {}};
  {
    const base::LockGuard lock(mutex_);
    if (!reuse(stream, size, memory, wait_for)) {
      bool fits = core_.memory.reserve(size);
      if (!fits && release_reached(0)) fits = core_.memory.reserve(size);
      if (!fits) {
        const MemoryInfo info = core_.memory.info();
        base::fail(ErrorCode::kOutOfMemory, here,
                   "asked for {} bytes in stream order on '{}': {} of {} reserved, {} of them free in the pool "
                   "but not yet reusable",
                   block.bytes, core_.info.label, info.reserved, info.total, free_bytes_);
      }
      try {
        memory.data = static_cast<std::byte*>(core_.backend->allocate(MemoryKind::kDevice, size));
      } catch (...) {
        core_.memory.release(size);
        throw;
      }
    }
  }
  // Without the lock: submitting may block while the queue is full.
  try {
    if (wait_for.stream) issue(stream, {.kind = OpKind::kWait, .name = "pool reuse", .here = here, .point = wait_for});
  } catch (...) {
    const base::LockGuard lock(mutex_);
    watching_.store(true, std::memory_order_relaxed);
    free_.push_back({memory.data, memory.bytes, wait_for});
    free_bytes_ += memory.bytes;
    throw;
  }
  core_.memory.use(static_cast<std::ptrdiff_t>(memory.bytes));
  block.data = memory.data;
  block.capacity = memory.bytes;
}

// Finds the free block of the best size that the stream may use. Sets `wait_for` if the stream must first wait until
// the block is unused.
bool StreamPool::reuse(StreamState& stream, std::size_t size, FreeBlock& found, StreamPoint& wait_for) {
  const PoolOptions& rules = core_.options.pool;
  std::size_t best = free_.size();
  bool best_waits = false;
  for (std::size_t i = 0; i < free_.size(); ++i) {
    const FreeBlock& block = free_[i];
    if (block.bytes < size || block.bytes / 2 > size) continue;
    bool waits = false;
    const bool allowed =
        block.freed.stream == &stream ||
        (rules.opportunistic && core_.backend->reached(*block.freed.stream, block.freed.position)) ||
        (rules.follow_event_dependencies && ordered_after(&stream, kEverything, block.freed, kDepth)) ||
        (rules.internal_dependencies && (waits = true));
    if (!allowed) continue;
    // Prefer a block without a wait, then the smaller block.
    const bool better =
        best == free_.size() || (best_waits && !waits) || (best_waits == waits && block.bytes < free_[best].bytes);
    if (better) best = i, best_waits = waits;
  }
  if (best == free_.size()) return false;
  found = free_[best];
  if (best_waits) wait_for = found.freed;
  free_[best] = free_.back();
  free_.pop_back();
  free_bytes_ -= found.bytes;
  return true;
}

void StreamPool::free(StreamState& stream, const Block& block, Here here) {
  // Waits issued from now on must be recorded; earlier ones cannot cover this free.
  watching_.store(true, std::memory_order_relaxed);
  const std::uint64_t position = issue(stream, {.kind = OpKind::kRecord, .here = here});
  const base::LockGuard lock(mutex_);
  watching_.store(true, std::memory_order_relaxed);  // release_reached() of another thread may have cleared it
  free_.push_back({block.data, block.capacity, {&stream, position}});
  free_bytes_ += block.capacity;
  core_.memory.use(-static_cast<std::ptrdiff_t>(block.capacity));
}

void StreamPool::keep_wait(const StreamState& stream, StreamPoint point) {
  const std::uint64_t at = core_.backend->submit(const_cast<StreamState&>(stream), {.kind = OpKind::kRecord});
  const base::LockGuard lock(mutex_);
  std::deque<StreamWait>& waits = waits_[&stream];
  waits.push_back({at, point});
  if (waits.size() > kWaitsKept) waits.pop_front();
}

// Returns whether `stream`, up to `position`, waited for `point`, directly or through other streams.
bool StreamPool::ordered_after(const StreamState* stream, std::uint64_t position, StreamPoint point, int depth) const {
  const auto found = waits_.find(stream);
  if (found == waits_.end()) return false;
  for (const StreamWait& wait : found->second) {
    if (wait.at > position) break;
    if (wait.point.stream == point.stream && wait.point.position >= point.position) return true;
    if (depth > 0 && wait.point.stream != stream &&
        ordered_after(wait.point.stream, wait.point.position, point, depth - 1))
      return true;
  }
  return false;
}

bool StreamPool::release_reached(std::size_t keep) {
  std::size_t left = free_bytes_;
  std::erase_if(free_, [&](const FreeBlock& block) {
    if (left <= keep || !core_.backend->reached(*block.freed.stream, block.freed.position)) return false;
    give_back(core_, block.data, block.bytes);
    left -= block.bytes;
    return true;
  });
  const bool any = left != free_bytes_;
  free_bytes_ = left;
  if (free_.empty()) {
    watching_.store(false, std::memory_order_relaxed);
    waits_.clear();
  }
  return any;
}

void StreamPool::trim(std::size_t keep) {
  if (!watching_.load(std::memory_order_relaxed)) return;
  const base::LockGuard lock(mutex_);
  if (free_bytes_ > keep) release_reached(keep);
}

}  // namespace slip::runtime
