#include "backend/cpu/cpu.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>

#include "backend/cpu/cpu_backend.hpp"
#include "backend/cpu/pool.hpp"
#include "backend/cpu/serial.hpp"
#include "backend/cpu/strict.hpp"
#include "backend/slab.hpp"
#include "base/thread.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kDefaultDepth = 4096;  // cells: 256 KiB a stream, touched only as far as used
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
constexpr std::uint64_t kOpening = ~std::uint64_t{0};  // id of a lane that is handed out and not yet named

// Makes the lane of a closed device as good as new, but for its positions, which go on, and its ring. The next device
// may have another policy, whose executor trusts fields that the last one left as they were: a lane that goes idle
// under Serial is kQueued for ever, and a Pool's waiting thread would claim it while it is idle. REQUIRES: no thread of
// the closed device is left. relaxed: the slab's mutex passes the lane on.
void renew(Lane& lane) {
  lane.id.store(0, std::memory_order_relaxed);
  lane.core = nullptr;
  lane.executor.store(nullptr, std::memory_order_relaxed);
  lane.queue = nullptr;
  lane.queue_index = -1;
  lane.joins_legacy = false;
  lane.has_pending.store(false, std::memory_order_relaxed);
  lane.pending = {};
  // Work that exit dropped: the next user of the lane starts behind it.
  lane.published.store(lane.tail, std::memory_order_relaxed);
  lane.head = lane.limit = lane.tail;
  lane.done.store(lane.tail, std::memory_order_relaxed);
  lane.idle.store(true, std::memory_order_relaxed);
  lane.state.store(LaneState::kRunning, std::memory_order_relaxed);  // nobody may claim it
  lane.has_waiters.store(false, std::memory_order_relaxed);
  lane.waiters = nullptr;
  lane.waiter = {};
  lane.parked_on.store(nullptr, std::memory_order_relaxed);
  lane.parked_position.store(0, std::memory_order_relaxed);
  lane.granted = Engine::kNone;
  lane.op_ticks.store(~0ull, std::memory_order_relaxed);
  lane.looks = 0;
  lane.syncs_seen = lane.syncs_shared = lane.syncs.load(std::memory_order_relaxed);
  lane.done_looked = 0;
  lane.next = lane.shared_next = nullptr;
  // A lane that a driver claimed may still have had an entry in the queue of the executor that is gone.
  lane.enqueued = lane.left_to_host = lane.queue_parked = lane.dispatched = lane.told = false;
}

}  // namespace

CpuBackend::CpuBackend(DeviceCore& core)
    : core_(core),
      merge_waits_(core.options.policy == Policy::kConcurrent && !core.options.strict &&
                   core.options.max_connections == 0),
      depth_(std::bit_ceil(std::clamp<std::uint64_t>(
          core.options.queue_depth ? core.options.queue_depth : kDefaultDepth, 16, std::uint64_t{1} << 24))) {
  const int cores = core_count();
  const int workers = core.options.compute_workers > 0 ? core.options.compute_workers : std::max(2, cores);
  for (int i = 0; i < core.options.max_connections; ++i) queues_.push_back(std::make_unique<HardwareQueue>());
  core.info.description = fmt::format("host threads, {} compute workers on {} cores", workers, cores);
  core.info.memory_bytes = physical_memory();
  core.info.compute_workers = workers;
  core.info.queues = core.options.max_connections;
  if (core.options.strict && core.options.policy == Policy::kConcurrent) core.options.policy = Policy::kSingle;
  if (core.options.policy == Policy::kConcurrent) executor_ = std::make_unique<Pool>(workers, cores);
  else executor_ = std::make_unique<Serial>(core.options.policy, core.options.seed, mutex_, lanes_);
}

CpuBackend::~CpuBackend() {
  executor_->await_visitors();
  executor_.reset();
  for (Lane* lane : lanes_) {
    renew(*lane);
    Slab<Lane>::give(lane);
  }
}

void* CpuBackend::allocate(MemoryKind kind, std::size_t bytes) {
  void* data = nullptr;
  if (bytes > physical_memory()) {
    // The system might promise that much and then end the process when it is used.
  } else if (kind == MemoryKind::kDevice && core_.options.strict) {
    data = strict_allocate(core_, bytes);
  } else {
    // Large blocks on huge pages: copies then miss the TLB less.
    const bool large = bytes >= kHugePage;
    const std::size_t alignment = large ? kHugePage : 4096;
    data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (data && large) madvise(data, bytes, MADV_HUGEPAGE);
  }
  if (!data)
    throw Error(Code::kOutOfMemory,
                fmt::format("asked for {} bytes of {} memory: the system has {}", bytes, memory_kind_name(kind),
                            physical_memory()),
                {});
  return data;
}

void CpuBackend::deallocate(MemoryKind kind, void* data, std::size_t bytes) noexcept {
  if (kind == MemoryKind::kDevice && core_.options.strict) strict_deallocate(data, bytes);
  else std::free(data);
}

// A closed lane of this device whose work is done, for use again; its submit_lock is held. A thread that got hold of
// the stream before it was closed may still submit to it: under the lock the lane is either drained or not.
Lane* CpuBackend::find_drained() {
  for (Lane* lane : lanes_) {
    if (lane->id.load(std::memory_order_acquire) != 0 || !lane->drained()) continue;
    lane->submit_lock.lock();
    if (lane->drained()) return lane;
    lane->submit_lock.unlock();
  }
  return nullptr;
}

StreamState* CpuBackend::open_stream(const StreamSpec& spec) {
  require_own_stream(spec, "cpu");
  const std::lock_guard lock(mutex_);
  Lane* lane = find_drained();
  if (!lane) {
    lane = Slab<Lane>::take();
    lanes_.push_back(lane);
    lane->submit_lock.lock();
  }
  if (lane->capacity != depth_) {
    lane->ring = std::make_unique_for_overwrite<Cell[]>(depth_);
    lane->capacity = depth_;
  }
  lane->room_until = lane->tail + depth_;
  // Behind all legacy work of this device so far. Not behind that of another device, which had the legacy lane before.
  lane->legacy_seen.store(legacy_begin_, std::memory_order_relaxed);
  lane->seen_by_legacy = lane->tail;
  lane->op_ticks.store(~0ull, std::memory_order_relaxed);
  lane->queue = nullptr;
  lane->queue_index = -1;
  if (!queues_.empty()) {
    lane->queue_index = static_cast<int>(opened_ % queues_.size());
    lane->queue = queues_[static_cast<std::size_t>(lane->queue_index)].get();
  }
  ++opened_;
  if (lane->core != &core_) lane->core = &core_;  // see slip::open_stream
  lane->executor.store(executor_.get(), std::memory_order_relaxed);
  lane->joins_legacy = spec.flags == StreamFlags::kBlocking && !spec.legacy;
  if (spec.legacy) {
    legacy_ = lane;
    legacy_begin_ = lane->tail;
    legacy_end_.store(lane->tail, std::memory_order_relaxed);  // relaxed: the device has no other stream yet
  }
  lane->id.store(kOpening, std::memory_order_relaxed);  // so that no other thread finds it drained
  lane->submit_lock.unlock();
  return lane;
}

void CpuBackend::close_stream(StreamState& stream) noexcept {
  settle_pending(static_cast<Lane&>(stream));
  // release: find_drained(), which hands the lane out again once its work is done, sees all that was done to it.
  stream.id.store(0, std::memory_order_release);
}

// The lanes that a wait for `stream` covers: itself; the legacy stream also all blocking ones (rule 24); null: all.
std::vector<Lane*> CpuBackend::covered_by(StreamState* stream) {
  if (stream && !stream->legacy) return {static_cast<Lane*>(stream)};
  const std::lock_guard lock(mutex_);
  std::vector<Lane*> result;
  for (Lane* lane : lanes_) {
    if (!stream || lane == stream || lane->joins_legacy) result.push_back(lane);
  }
  return result;
}

bool CpuBackend::reached(StreamState* stream, std::uint64_t position) {
  executor_->nudge();
  if (stream && position != kEverything)
    return static_cast<Lane*>(stream)->done.load(std::memory_order_acquire) >= position;
  for (Lane* lane : covered_by(stream)) {
    settle_pending(*lane);
    if (lane->done.load(std::memory_order_acquire) < lane->published.load(std::memory_order_acquire)) return false;
  }
  return true;
}

bool CpuBackend::wait(StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) {
  if (stream && (position != kEverything || !stream->legacy)) {
    Lane& lane = static_cast<Lane&>(*stream);
    if (position == kEverything) {
      settle_pending(lane);
      position = load_acquire(lane.published);
    }
    // Not a fetch_add, which would wait for the stores before it: a hint, of which one may get lost.
    lane.syncs.store(lane.syncs.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (load_acquire(lane.done) >= position) return true;  // acquire: what was done is seen
    return executor_->wait(lane, position, deadline_ns);
  }
  struct End {
    Lane* lane;
    std::uint64_t position;
  };
  std::vector<End> ends;
  for (Lane* lane : covered_by(stream)) {
    settle_pending(*lane);
    ends.push_back({lane, lane->published.load(std::memory_order_acquire)});
  }
  for (const End& end : ends) {
    if (!executor_->wait(*end.lane, end.position, deadline_ns)) return false;
  }
  return true;
}

std::vector<std::unique_ptr<Backend>> open_cpu(std::string_view rest, std::span<DeviceCore* const> cores) {
  if (!rest.empty() && !std::all_of(rest.begin(), rest.end(), [](char c) { return c >= '0' && c <= '9'; }))
    throw Error(Code::kInvalidDevice, fmt::format("no device 'cpu:{}': write cpu or cpu:NUMBER", rest), {});
  std::vector<std::unique_ptr<Backend>> result;
  for (DeviceCore* core : cores) result.push_back(std::make_unique<CpuBackend>(*core));
  return result;
}

}  // namespace slip
