#include "backend/cpu/cpu_backend.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <typeinfo>

#include "backend/cpu/pack.hpp"
#include "backend/cpu/pool.hpp"
#include "backend/cpu/serial.hpp"
#include "backend/cpu/strict.hpp"
#include "base/fail.hpp"
#include "base/slab.hpp"
#include "base/thread.hpp"
#include "runtime/observers.hpp"

namespace slip::backend {
namespace {

// In cells of 64 bytes: 256 KiB per stream. Linux allocates the pages when they are first written.
constexpr std::uint64_t kDefaultDepth = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}
bool is_drained(const Lane& lane) {
  return lane.done.load(std::memory_order_acquire) == lane.published.load(std::memory_order_acquire) &&
         lane.idle.load(std::memory_order_acquire) && !lane.has_pending.load(std::memory_order_relaxed);
}

// The id of a lane that open_stream() returns, until the runtime sets the real one.
constexpr std::uint64_t kOpening = ~std::uint64_t{0};

// Resets the lane of a closed device. Its positions continue to increase, and it keeps its ring. The next device may
// have another policy, whose executor relies on fields that the last executor did not maintain. Example: a lane that
// becomes idle under Serial stays kQueued, and a waiting thread of a Pool would claim it although it is idle. REQUIRES:
// all threads of the closed device have ended. relaxed: the mutex of Slab publishes the changes.
void renew(Lane& lane) SLIP_NO_THREAD_SAFETY_ANALYSIS {
  lane.id.store(0, std::memory_order_relaxed);
  lane.device_id.store(0, std::memory_order_relaxed);
  lane.core = nullptr;
  lane.executor.store(nullptr, std::memory_order_relaxed);
  lane.queue = nullptr;
  lane.queue_index = -1;
  lane.joins_legacy = false;
  lane.has_pending.store(false, std::memory_order_relaxed);
  lane.pending = {};
  // At process exit a device is closed without waiting for its work. The next user of the lane starts after the
  // positions of that work.
  lane.published.store(lane.tail, std::memory_order_relaxed);
  lane.head = lane.limit = lane.tail;
  lane.done.store(lane.tail, std::memory_order_relaxed);
  lane.idle.store(true, std::memory_order_relaxed);
  lane.state.store(LaneState::kRunning, std::memory_order_relaxed);  // no thread may claim it
  {
    // The lock: a thread of another device, whose stream waited for this one, may still be in park_on_point(). It finds
    // that the position is reached, and leaves no waiter.
    const base::LockGuard lock(lane.wait_lock);
    lane.has_waiters.store(false, std::memory_order_relaxed);
    lane.waiters = nullptr;
  }
  lane.waiter = {};
  lane.parked_on.store(nullptr, std::memory_order_relaxed);
  lane.parked_position.store(0, std::memory_order_relaxed);
  lane.granted = Engine::kNone;
  lane.op_ticks.store(~0ull, std::memory_order_relaxed);
  lane.checks = 0;
  lane.syncs_seen = lane.syncs_shared = lane.syncs.load(std::memory_order_relaxed);
  lane.done_checked = 0;
  lane.next = lane.shared_next = nullptr;
  // The shared queue of the destroyed executor may have had an entry for this lane, although a waiting host thread had
  // claimed the lane.
  lane.enqueued = lane.left_to_host = lane.queue_parked = lane.dispatched = lane.subscribed = false;
}

}  // namespace

CpuBackend::CpuBackend(runtime::DeviceCore& core)
    : core_(core),
      merge_waits_(core.options.policy == CpuPolicy::kConcurrent && !core.options.strict &&
                   core.options.max_connections == 0),
      depth_(std::bit_ceil(std::clamp<std::uint64_t>(
          core.options.queue_depth ? core.options.queue_depth : kDefaultDepth, 16, std::uint64_t{1} << 24))) {
  const int cores = base::core_count();
  const int workers = core.options.compute_workers > 0 ? core.options.compute_workers : std::max(2, cores);
  for (int i = 0; i < core.options.max_connections; ++i) queues_.push_back(std::make_unique<HardwareQueue>());
  core.info.description = fmt::format("host threads, {} compute workers on {} cores", workers, cores);
  core.info.memory_bytes = physical_memory();
  core.info.compute_workers = workers;
  core.info.queues = core.options.max_connections;
  if (core.options.strict && core.options.policy == CpuPolicy::kConcurrent) core.options.policy = CpuPolicy::kSingle;
  if (core.options.policy == CpuPolicy::kConcurrent) executor_ = std::make_unique<Pool>(workers, cores);
  else executor_ = std::make_unique<Serial>(core.options.policy, core.options.seed, mutex_, lanes_);
}

CpuBackend::~CpuBackend() {
  executor_->await_visitors();
  executor_.reset();
  for (Lane* lane : lanes_) {
    renew(*lane);
    base::Slab<Lane>::give(lane);
  }
}

void* CpuBackend::allocate(MemoryKind kind, std::size_t bytes) {
  void* data = nullptr;
  if (bytes > physical_memory()) {
    // Refused: the system might overcommit, and then kill the process when it uses the memory.
  } else if (kind == MemoryKind::kDevice && core_.options.strict) {
    data = strict_allocate(core_, bytes);
  } else {
    // Large blocks use huge pages: copies then have fewer TLB misses.
    const bool large = bytes >= kHugePage;
    const std::size_t alignment = large ? kHugePage : 4096;
    data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (data && large) madvise(data, bytes, MADV_HUGEPAGE);
  }
  if (!data)
    base::fail(ErrorCode::kOutOfMemory, {}, "asked for {} bytes of {} memory: the system has {} bytes", bytes,
               memory_kind_name(kind), physical_memory());
  return data;
}

void CpuBackend::deallocate(MemoryKind kind, void* data, std::size_t bytes) noexcept {
  if (kind == MemoryKind::kDevice && core_.options.strict) strict_deallocate(data, bytes);
  else std::free(data);
}

// Returns a closed lane of this device whose work is done, for reuse, with its submit_lock held. A thread that got the
// stream before it was closed may still submit to it. Only the second check, under the lock, is final.
Lane* CpuBackend::find_drained() {
  for (Lane* lane : lanes_) {
    if (lane->id.load(std::memory_order_acquire) != 0 || !is_drained(*lane)) continue;
    lane->submit_lock.lock();
    if (is_drained(*lane)) return lane;
    lane->submit_lock.unlock();
  }
  return nullptr;
}

runtime::StreamState* CpuBackend::open_stream(const runtime::StreamSpec& spec) {
  runtime::require_own_stream(spec, "cpu");
  const base::LockGuard lock(mutex_);
  Lane* lane = find_drained();
  if (!lane) {
    lane = base::Slab<Lane>::take();
    lanes_.push_back(lane);
    lane->submit_lock.lock();
  }
  if (lane->capacity != depth_) {
    lane->ring = std::make_unique_for_overwrite<Cell[]>(depth_);
    lane->capacity = depth_;
  }
  lane->room_until = lane->tail + depth_;
  // The first op of the lane waits for all legacy work of this device so far. It does not wait for the work of an
  // earlier device that used the same legacy lane.
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
  if (lane->core != &core_) lane->core = &core_;  // see runtime::open_stream
  lane->executor.store(executor_.get(), std::memory_order_relaxed);
  lane->joins_legacy = spec.flags == StreamFlags::kBlocking && !spec.legacy;
  if (spec.legacy) {
    legacy_ = lane;
    legacy_begin_ = lane->tail;
    legacy_end_.store(lane->tail, std::memory_order_relaxed);  // relaxed: the device has no other stream yet
  }
  lane->id.store(kOpening, std::memory_order_relaxed);  // so that find_drained() skips it
  lane->submit_lock.unlock();
  return lane;
}

void CpuBackend::close_stream(runtime::StreamState& stream) noexcept {
  settle_pending(static_cast<Lane&>(stream));
  // release: find_drained(), which reuses the lane once its work is done, sees all changes.
  stream.id.store(0, std::memory_order_release);
}

// Returns the lanes that a wait for `stream` covers. For the legacy stream: also all blocking streams (rule 24 of
// docs/semantics.md). For null: all lanes.
std::vector<Lane*> CpuBackend::covered_by(runtime::StreamState* stream) {
  if (stream && !stream->legacy) return {static_cast<Lane*>(stream)};
  const base::LockGuard lock(mutex_);
  std::vector<Lane*> result;
  for (Lane* lane : lanes_) {
    if (!stream || lane == stream || lane->joins_legacy) result.push_back(lane);
  }
  return result;
}

bool CpuBackend::reached(runtime::StreamState& stream, std::uint64_t position) {
  executor_->hurry();
  if (position != runtime::kEverything)
    return static_cast<Lane&>(stream).done.load(std::memory_order_acquire) >= position;
  for (Lane* lane : covered_by(&stream)) {
    settle_pending(*lane);
    if (lane->done.load(std::memory_order_acquire) < lane->published.load(std::memory_order_acquire)) return false;
  }
  return true;
}

bool CpuBackend::wait(runtime::StreamState* stream, std::uint64_t position, std::int64_t deadline_ns) {
  if (stream && (position != runtime::kEverything || !stream->legacy)) {
    Lane& lane = static_cast<Lane&>(*stream);
    if (position == runtime::kEverything) {
      settle_pending(lane);
      position = base::load_acquire(lane.published);
    }
    // Not a fetch_add, which would wait for earlier stores. The count is a hint: an increment may get lost.
    lane.syncs.store(lane.syncs.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (base::load_acquire(lane.done) >= position) return true;  // acquire: sees the results
    return executor_->wait(lane, position, deadline_ns);
  }
  std::vector<StreamPoint> ends;
  for (Lane* lane : covered_by(stream)) {
    settle_pending(*lane);
    ends.push_back({lane, lane->published.load(std::memory_order_acquire)});
  }
  return std::ranges::all_of(ends, [&](const StreamPoint& end) {
    return executor_->wait(static_cast<Lane&>(*end.stream), end.position, deadline_ns);
  });
}

runtime::Backends open_cpu(std::string_view rest, runtime::Cores cores) {
  if (!rest.empty() && !std::ranges::all_of(rest, [](char c) { return c >= '0' && c <= '9'; }))
    base::fail(ErrorCode::kInvalidDevice, {}, "no device 'cpu:{}': write cpu or cpu:NUMBER", rest);
  runtime::Backends result;
  for (runtime::DeviceCore* core : cores) result.push_back(std::make_unique<CpuBackend>(*core));
  return result;
}

namespace {

constexpr std::uint64_t kLargestOp = 16'000;      // cells: PackedOp counts its lists in 16 bits
constexpr std::uint64_t kWritePrefetchCells = 8;  // distance of the prefetched cell from the end of the written op
const Op kLoneWait{.kind = OpKind::kWait};
const Op kBarrierWait{.kind = OpKind::kWait, .opaque = true};  // opaque: an implicit wait

// The maximum number of cells that submit() writes before an op: the `pending` waits as an op of their own, and a wait
// for legacy work, which takes one cell.
std::uint64_t wait_cells(std::size_t pending) { return cells_of(kLoneWait, pending) + 1; }

void require_fit(const Lane& lane, std::uint64_t cells, Here here) SLIP_EXCLUDES(lane.submit_lock) {
  const std::uint64_t largest = std::min(lane.capacity / 2 - wait_cells(0), kLargestOp);
  if (cells > largest) [[unlikely]]
    base::fail(ErrorCode::kInvalidValue, here,
               "an op takes {} bytes of its stream's queue: at most {} fit in a queue of {} bytes "
               "(DeviceOptions::queue_depth)",
               cells * sizeof(Cell), largest * sizeof(Cell), lane.capacity * sizeof(Cell));
}

// Returns the position that a full lane must reach before the host continues. At least half of the ring is free then,
// so that the blocked host can submit many ops at once. If the op needs more cells, more are free.
std::uint64_t room_at(const Lane& lane, std::uint64_t cells) SLIP_REQUIRES(lane.submit_lock) {
  return lane.tail - std::min(lane.capacity / 2, lane.capacity - 2 * cells);
}

// Whether the lane has no owner and no thread can take it. leave_if_empty() increments `leaving`, sets `idle`, perhaps
// takes the lane back, and then decrements `leaving`. acquire: this thread sees these stores in order, and the lane as
// its last owner left it.
bool is_ownerless(const Lane& lane) SLIP_REQUIRES(lane.submit_lock) {
  return base::load_acquire(lane.idle) && base::load_acquire(lane.leaving) == 0 &&
         lane.idle.load(std::memory_order_relaxed);
}

// Whether the ring has room for an op of that many cells and the padding before it. Padding is shorter than the op, so
// twice the cells suffice. Reads `done` again only if the cells known to be free do not suffice.
bool make_room(Lane& lane, std::uint64_t cells) SLIP_REQUIRES(lane.submit_lock) {
  const std::uint64_t need = lane.tail + 2 * cells;
  if (need <= lane.room_until) [[likely]]
    return true;
  lane.room_until = lane.done.load(std::memory_order_acquire) + lane.capacity;  // acquire: those cells are free again
  return need <= lane.room_until;
}

// Returns the first cell for an op: at the tail, or, after padding, at the start of the ring. REQUIRES: room, see
// make_room().
PackedOp& reserve(Lane& lane, std::uint64_t cells) SLIP_REQUIRES(lane.submit_lock) {
  const std::uint64_t to_end = lane.capacity - (lane.tail & (lane.capacity - 1));
  if (to_end < cells) {
    PackedOp& padding = op_at(lane, lane.tail);
    padding.padding = true;
    padding.cells = static_cast<std::uint16_t>(to_end);
    lane.tail += to_end;
  }
  return op_at(lane, lane.tail);
}

// True: the lane's own order implies the wait, but an observer cannot know that, because the point belongs to a stream
// with another id: a closed stream that used this lane before, or a stream on another kind of device. The wait then
// takes a position of its own, so that records before and after it have different positions.
bool is_wait_for_former(const Lane& lane, const Op& op) {
  return op.point.stream == &lane && op.point_stream != lane.last_id && runtime::observed();
}

// Keeps the wait, so that the next op carries it. REQUIRES: room, fewer than kMaxWaits pending waits.
std::uint64_t keep_wait(Lane& lane, const Op& op) SLIP_REQUIRES(lane.submit_lock) {
  if (op.point.stream == &lane) return lane.tail;  // the stream's own order implies it
  lane.pending.points[lane.pending.count++] = op.point;
  lane.has_pending.store(true, std::memory_order_relaxed);
  return lane.tail;
}

// Finishes an exchange that is already done, without a cell of the ring and without an owner of the lane. No other
// thread can take the lane. This thread ran the exchange, so whatever it submits or records later publishes the
// results. Returns the end of the lane, which is reached. An exchange that failed takes a cell of its own, because
// points before it must not report its failure. REQUIRES: room, is_ownerless().
std::uint64_t finish_ended(Lane& lane, const Op& op) SLIP_REQUIRES(lane.submit_lock) {
  if (finish_exchange(lane, op, lane.tail + 1)) [[likely]]
    return lane.tail;
  lane.head = lane.limit = ++lane.tail;
  lane.done.store(lane.tail, std::memory_order_release);  // release: a thread that sees the op done sees its results
  lane.published.store(lane.tail, std::memory_order_release);  // release: a thread that sees the op sees `done`, too
  return lane.tail;
}

// Returns true if the lane was idle and has work. Then its state is `becomes`: with kQueued the caller must wake the
// executor, with kRunning the caller owns the lane. REQUIRES: the ops are published.
bool activate(Lane& lane, LaneState becomes = LaneState::kQueued) SLIP_REQUIRES(lane.submit_lock) {
  base::light_fence();  // see leave_if_empty()
  if (!lane.idle.load(std::memory_order_relaxed)) [[likely]]
    return false;
  // acquire: sees the lane as its last owner left it. If `idle` is already false, that owner saw the published ops and
  // took the lane back.
  if (!lane.idle.exchange(false, std::memory_order_acquire)) return false;
  if (lane.done.load(std::memory_order_relaxed) == lane.tail) {  // no new op, or a waiting thread has run it (Serial)
    lane.idle.store(true, std::memory_order_release);
    return false;
  }
  lane.state.store(becomes, std::memory_order_release);
  return true;
}

}  // namespace

std::uint64_t CpuBackend::submit(runtime::StreamState& stream, const Op& op) {
  Lane& lane = static_cast<Lane&>(stream);
  if (op.kind == OpKind::kKernel && !op.kernel->cpu) [[unlikely]]
    base::fail(ErrorCode::kUnsupported, op.here, "kernel '{}' has no cpu function", op.name.text());
  if (op.kind == OpKind::kWait && typeid(*op.point.stream) != typeid(Lane)) [[unlikely]] {
    // A lane cannot wait for another kind of device, so this thread waits. Null: that device is closed, its work done.
    if (runtime::DeviceCore* core = op.point.stream->core) core->backend->wait(op.point.stream, op.point.position, 0);
    Op reached = op;
    reached.point = {&lane, lane.published.load(std::memory_order_relaxed)};
    return submit(lane, reached);
  }
  if (lane.legacy) return submit_legacy(lane, op);
  if (runtime::is_bookkeeping(op)) {
    settle_pending(lane);
    return lane.published.load(std::memory_order_relaxed);  // relaxed: a position; no data depends on it
  }
  // A record without a time stamp is just the current end of the lane, unless a legacy op (rules 3, 9) or a pending
  // wait precedes it.
  if (op.kind == OpKind::kRecord && !op.event && !behind_legacy(lane) &&
      !lane.has_pending.load(std::memory_order_relaxed))
    return lane.published.load(std::memory_order_relaxed);
  if (op.kind == OpKind::kWait && merge_waits_ && !op.name && !is_wait_for_former(lane, op)) {
    const base::LockGuard lock(lane.submit_lock);
    // make_room() also checks the cells that settle_pending() needs if no op follows that carries the waits.
    if (!behind_legacy(lane) && lane.pending.count < kMaxWaits && make_room(lane, wait_cells(lane.pending.count + 1)))
        [[likely]]
      return keep_wait(lane, op);
  }
  const std::uint64_t cells = cells_of(op);
  require_fit(lane, cells, op.here);
  for (;;) {
    lane.submit_lock.lock();
    const std::uint64_t needed = cells + wait_cells(lane.pending.count);
    if (2 * needed > lane.capacity) [[unlikely]] {  // too large to carry its waits
      lane.submit_lock.unlock();
      settle_pending(lane);
      continue;
    }
    if (!make_room(lane, needed)) {
      const std::uint64_t until = room_at(lane, needed);
      lane.submit_lock.unlock();
      executor_->wait(lane, until, 0);  // the queue is full: the host blocks
      continue;
    }
    if (behind_legacy(lane) && !runtime::is_allocation_mark(op)) [[unlikely]] {
      const std::uint64_t barrier = legacy_end_.load(std::memory_order_relaxed);  // exact: see behind_legacy()
      lane.legacy_seen.store(barrier, std::memory_order_relaxed);
      push_wait(lane, *legacy_, barrier);
    }
    // Begin the exchange before writing the op: the other ranks see it sooner.
    const bool ended = op.kind == OpKind::kExchange && may_begin(lane) && op.exchange->begin();
    if (ended && is_ownerless(lane)) [[likely]] {
      const std::uint64_t position = finish_ended(lane, op);
      lane.submit_lock.unlock();
      return position;
    }
    const std::uint64_t position = push(lane, op);
    runtime::notify_submitted(position);
    const bool idle = activate(lane, ended ? LaneState::kRunning : LaneState::kQueued);
    lane.submit_lock.unlock();
    if (!idle) return position;  // another thread runs the lane, including an op that has ended
    if (ended) executor_->end_begun(lane);
    else executor_->wake(lane);
    return position;
  }
}

// Whether the lane is empty and this thread may begin an exchange before it writes the op. False with an observer,
// because the submission must be reported before the run. The caller holds submit_lock, so an idle lane stays idle.
bool CpuBackend::may_begin(const Lane& lane) const {
  // acquire: sees the lane as its last owner left it.
  return base::load_acquire(lane.idle) && base::load_acquire(lane.done) == lane.tail && lane.pending.count == 0 &&
         !lane.queue && executor_->begins_early() && !lane.failure.set() && !core_.fault.set() && !runtime::observed();
}

// An op in the legacy stream waits for the ends of all blocking streams, and their next ops wait for it (rules 3-10).
std::uint64_t CpuBackend::submit_legacy(Lane& legacy, const Op& op) {
  const std::uint64_t cells = cells_of(op);
  require_fit(legacy, cells, op.here);
  for (;;) {
    std::vector<Lane*> activated;
    legacy.submit_lock.lock();
    const std::optional<std::uint64_t> position = push_legacy(legacy, op, activated);
    const std::uint64_t until = position ? 0 : room_at(legacy, cells + wait_cells(0));
    if (activate(legacy)) activated.push_back(&legacy);
    legacy.submit_lock.unlock();
    for (Lane* lane : activated) executor_->wake(*lane);
    if (position) return *position;
    executor_->wait(legacy, until, 0);  // the queue is full: the host blocks, with no lock held
  }
}

// Holds the submit locks of all blocking streams at once, so that each of their ops is either before or after the
// legacy op. Returns nullopt if the legacy lane is full: the waits pushed so far stay in it, and the next attempt adds
// the others.
std::optional<std::uint64_t> CpuBackend::push_legacy(Lane& legacy, const Op& op, std::vector<Lane*>& activated) {
  const std::uint64_t cells = cells_of(op);
  if (runtime::is_allocation_mark(op)) {  // the blocking streams do not wait for it, so `legacy_end_` does not change
    if (!make_room(legacy, cells + wait_cells(0))) return std::nullopt;
    return write(legacy, kLoneWait);
  }
  const base::LockGuard lock(mutex_);
  std::vector<Lane*> blocking;
  for (Lane* lane : lanes_) {
    if (lane->joins_legacy) blocking.push_back(lane);
  }
  for (Lane* lane : blocking) lane->submit_lock.lock();
  bool room = make_room(legacy, cells + wait_cells(0));
  for (Lane* lane : blocking) {
    if (!room) break;
    flush_pending(*lane);
    if (activate(*lane)) activated.push_back(lane);
    if (lane->seen_by_legacy == lane->tail) continue;
    lane->seen_by_legacy = lane->tail;
    push_wait(legacy, *lane, lane->tail);
    room = make_room(legacy, cells + wait_cells(0));
  }
  std::optional<std::uint64_t> position;
  if (room) {
    position = push(legacy, op);
    runtime::notify_submitted(*position);
  }
  legacy_end_.store(legacy.tail, std::memory_order_relaxed);  // relaxed: see behind_legacy()
  for (Lane* lane : blocking) lane->submit_lock.unlock();
  return position;
}

// REQUIRES: room for the op and its waits. Returns the position after the op.
std::uint64_t CpuBackend::push(Lane& lane, const Op& op) {
  if (op.kind == OpKind::kWait) {
    if (is_wait_for_former(lane, op)) return write(lane, kLoneWait);
    if (op.point.stream == &lane) return lane.tail;  // the stream's own order implies it
    // In the legacy lane a wait is a barrier for other streams (rule 9). A named wait is an implicit wait of the
    // allocator. Both need positions of their own.
    if (!merge_waits_ || lane.legacy || op.name) {
      return write_wait(lane, op, op.point);
    }
    if (lane.pending.count == kMaxWaits) flush_pending(lane);
    return keep_wait(lane, op);
  }
  if (op.kind == OpKind::kRecord && !op.event) {
    flush_pending(lane);
    // With an observer, the closing of a blocking stream is reported but takes no position. A record after it must get
    // another position than a record before it.
    if (lane.legacy && runtime::observed()) write(lane, kLoneWait);
    return lane.tail;
  }
  return write(lane, runtime::is_allocation_mark(op) ? kLoneWait : op);
}

// Writes the pending waits as an op of their own. REQUIRES: room.
void CpuBackend::flush_pending(Lane& lane) {
  if (lane.pending.count > 0) write(lane, kLoneWait);
}

// Writes a wait for the point, after the pending waits. REQUIRES: room.
std::uint64_t CpuBackend::write_wait(Lane& lane, const Op& op, StreamPoint point) {
  flush_pending(lane);
  lane.pending.points[lane.pending.count++] = point;
  return write(lane, op);
}

// Takes submit_lock and flushes the pending waits. Callers do this before they read the end of the lane, which then
// covers these waits.
void CpuBackend::settle_pending(Lane& lane) {
  if (!lane.has_pending.load(std::memory_order_relaxed)) return;
  lane.submit_lock.lock();
  flush_pending(lane);  // there is room: submit() reserved it with the waits
  const bool idle = activate(lane);
  lane.submit_lock.unlock();
  if (idle) executor_->wake(lane);
}

// Writes the op with the waits that came before it. REQUIRES: room. Returns the position after the op.
std::uint64_t CpuBackend::write(Lane& lane, const Op& op) {
  const std::span<const StreamPoint> waits(lane.pending.points, lane.pending.count);
  if (!waits.empty()) {
    lane.pending.count = 0;
    lane.has_pending.store(false, std::memory_order_relaxed);
  }
  const std::uint64_t cells = cells_of(op, waits.size());
  const bool numbered = core_.options.policy != CpuPolicy::kConcurrent;
  pack(op, cells, waits, numbered ? issued_.fetch_add(1, std::memory_order_relaxed) + 1 : 0, reserve(lane, cells));
  lane.tail += cells;
  // Another core has read the next cells, in the last round of the ring: prefetch them for writing.
  __builtin_prefetch(&lane.ring[(lane.tail + kWritePrefetchCells) & (lane.capacity - 1)], 1);
  if (lane.queue) lane.queue->enqueue(lane);
  lane.published.store(lane.tail, std::memory_order_release);  // release: the cells are written
  return lane.tail;
}

// Pushes an implicit wait: `lane` waits until `target` has reached the position. REQUIRES: room.
void CpuBackend::push_wait(Lane& lane, Lane& target, std::uint64_t position) {
  if (runtime::observed()) {
    runtime::notify_barrier(lane, lane.tail, {&target, position});
    // With an observer the barrier gets its own position, even if the point is reached: records before and after it
    // must differ.
  } else if (target.done.load(std::memory_order_acquire) >= position) {
    return;
  }
  write_wait(lane, kBarrierWait, {&target, position});
}

}  // namespace slip::backend
