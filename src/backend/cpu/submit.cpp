// The way of an op into its lane's ring: room, legacy barriers, waits carried by the next op.
#include <fmt/format.h>

#include <algorithm>
#include <typeinfo>
#include <utility>

#include "backend/cpu/cpu_backend.hpp"
#include "backend/cpu/pack.hpp"
#include "base/thread.hpp"
#include "runtime/bookkeeping.hpp"
#include "runtime/observers.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kLargestOp = 16'000;  // cells: PackedOp counts its lists in 16 bits
constexpr std::uint64_t kPrefetch = 8;
const Op kLoneWait{.kind = OpKind::kWait};
const Op kBarrierWait{.kind = OpKind::kWait, .opaque = true};  // opaque: an implicit wait

// Cells that may come before an op, or with it, when so many waits are pending: theirs, in an op of their own, and
// those of a wait for legacy work.
std::uint64_t wait_cells(std::size_t pending) { return cells_of(kLoneWait, pending) + 1; }

// REQUIRES: submit_lock not held.
void require_fit(const Lane& lane, std::uint64_t cells, Here here) {
  const std::uint64_t largest = std::min(lane.capacity / 2 - wait_cells(0), kLargestOp);
  if (cells > largest) [[unlikely]]
    throw Error(Code::kInvalidValue,
                fmt::format("an op of {} bytes does not fit: at most {} in a queue of {} bytes (queue_depth)",
                            cells * sizeof(Cell), largest * sizeof(Cell), lane.capacity * sizeof(Cell)),
                here);
}

// How far a full lane must get until that many cells fit: half of the ring, so that a host which is held gets on with
// many ops at once, and further where the op needs more. REQUIRES: submit_lock.
std::uint64_t room_at(const Lane& lane, std::uint64_t cells) {
  return lane.tail - std::min(lane.capacity / 2, lane.capacity - 2 * cells);
}

// Whether nobody has the lane or can get it. REQUIRES: submit_lock. Who left it says so before it is idle, and takes it
// back, if it does, before it says that it has gone. acquire: in this order, and the lane as it was left.
bool is_left(const Lane& lane) {
  return load_acquire(lane.idle) && load_acquire(lane.leaving) == 0 && lane.idle.load(std::memory_order_relaxed);
}

}  // namespace

std::uint64_t CpuBackend::submit(StreamState& stream, const Op& op) {
  Lane& lane = static_cast<Lane&>(stream);
  if (op.kind == OpKind::kKernel && !op.kernel->cpu) [[unlikely]]
    throw Error(Code::kUnsupported, fmt::format("kernel '{}' has no cpu function", op.name.text()), op.here);
  if (op.kind == OpKind::kWait && typeid(*op.point.stream) != typeid(Lane)) [[unlikely]] {
    // A point of another kind of device: the host waits for it, no lane can.
    op.point.stream->core->backend->wait(op.point.stream, op.point.position, 0);
    return lane.published.load(std::memory_order_relaxed);
  }
  if (lane.legacy) return is_allocation_mark(op) ? mark_legacy(lane) : submit_legacy(lane, op);
  if (is_bookkeeping(op)) {
    settle_pending(lane);
    return lane.published.load(std::memory_order_relaxed);  // relaxed: a position, no data hangs on it
  }
  // A record that needs no time stamp is just the present end, unless a legacy op (rules 3, 9) or a wait comes before
  // it.
  if (op.kind == OpKind::kRecord && !op.event && !behind_legacy(lane) &&
      !lane.has_pending.load(std::memory_order_relaxed))
    return lane.published.load(std::memory_order_relaxed);
  if (op.kind == OpKind::kWait && merge_waits_ && !op.name) {
    lane.submit_lock.lock();
    // What settle_pending() would need is kept free by the ops and waits before it.
    if (!behind_legacy(lane) && lane.pending.count < kMaxWaits && make_room(lane, wait_cells(lane.pending.count + 1)))
        [[likely]] {
      const std::uint64_t position = keep_wait(lane, op);
      lane.submit_lock.unlock();
      return position;
    }
    lane.submit_lock.unlock();
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
    if (behind_legacy(lane) && !is_allocation_mark(op)) [[unlikely]] {
      const std::uint64_t barrier = legacy_end_.load(std::memory_order_relaxed);  // exact: see behind_legacy()
      lane.legacy_seen.store(barrier, std::memory_order_relaxed);
      push_wait(lane, *legacy_, barrier);
    }
    // Before it is written: the sooner the others see it, the better.
    const bool ended = op.kind == OpKind::kExchange && may_begin(lane) && op.exchange->begin();
    if (ended && is_left(lane)) [[likely]] {
      const std::uint64_t position = write_ended(lane, op);
      lane.submit_lock.unlock();
      return position;
    }
    const std::uint64_t position = push(lane, op);
    tell_submitted(position);
    const bool idle = rouse(lane, ended ? LaneState::kRunning : LaneState::kQueued);
    lane.submit_lock.unlock();
    if (!idle) return position;  // somebody runs it, also what has ended
    if (ended) executor_->end_begun(lane);
    else executor_->wake(lane);
    return position;
  }
}

// Whether nothing is before the next op. Not while somebody watches: that it was submitted is told before that it ran.
// REQUIRES: submit_lock: an idle lane stays idle.
bool CpuBackend::may_begin(const Lane& lane) const {
  // acquire: the lane as its last owner left it.
  return load_acquire(lane.idle) && load_acquire(lane.done) == lane.tail && lane.pending.count == 0 && !lane.queue &&
         executor_->begins_early() && !lane.failure.set() && !core_.fault.set() && !observed();
}

// An op in the legacy stream waits for the ends of all blocking streams and is waited for by their next ops (rules
// 3-10).
std::uint64_t CpuBackend::submit_legacy(Lane& legacy, const Op& op) {
  const std::uint64_t cells = cells_of(op);
  require_fit(legacy, cells, op.here);
  for (;;) {
    std::vector<Lane*> roused;
    legacy.submit_lock.lock();
    const std::optional<std::uint64_t> position = push_legacy(legacy, op, roused);
    const std::uint64_t until = position ? 0 : room_at(legacy, cells + wait_cells(0));
    if (rouse(legacy)) roused.push_back(&legacy);
    legacy.submit_lock.unlock();
    for (Lane* lane : roused) executor_->wake(*lane);
    if (position) return *position;
    executor_->wait(legacy, until, 0);  // the queue is full: the host blocks, with no lock held
  }
}

// An allocation in the legacy stream: the blocking streams do not wait for it, so `legacy_end_` stays.
std::uint64_t CpuBackend::mark_legacy(Lane& legacy) {
  constexpr std::uint64_t kCells = 1 + 2;
  for (;;) {
    legacy.submit_lock.lock();
    if (make_room(legacy, kCells)) break;
    const std::uint64_t until = room_at(legacy, kCells);
    legacy.submit_lock.unlock();
    executor_->wait(legacy, until, 0);  // the queue is full: the host blocks
  }
  const std::uint64_t position = write(legacy, kLoneWait, {});
  const bool idle = rouse(legacy);
  legacy.submit_lock.unlock();
  if (idle) executor_->wake(legacy);
  return position;
}

// All submit locks of the blocking streams are held at once, so that every op of theirs is on one side or the other.
// Null when the queue is full: the waits pushed so far stand, the next try adds the rest. REQUIRES: submit_lock.
std::optional<std::uint64_t> CpuBackend::push_legacy(Lane& legacy, const Op& op, std::vector<Lane*>& roused) {
  const std::uint64_t cells = cells_of(op);
  const std::lock_guard lock(mutex_);
  std::vector<Lane*> blocking;
  for (Lane* lane : lanes_) {
    if (lane->joins_legacy) blocking.push_back(lane);
  }
  for (Lane* lane : blocking) lane->submit_lock.lock();
  bool room = make_room(legacy, cells + wait_cells(0));
  for (Lane* lane : blocking) {
    if (!room) break;
    flush_pending(*lane);
    if (rouse(*lane)) roused.push_back(lane);
    if (lane->seen_by_legacy == lane->tail) continue;
    lane->seen_by_legacy = lane->tail;
    push_wait(legacy, *lane, lane->tail);
    room = make_room(legacy, cells + wait_cells(0));
  }
  std::optional<std::uint64_t> position;
  if (room) {
    position = push(legacy, op);
    tell_submitted(*position);
  }
  legacy_end_.store(legacy.tail, std::memory_order_relaxed);  // relaxed: read under the locks held here
  for (Lane* lane : blocking) lane->submit_lock.unlock();
  return position;
}

// Whether the ring has room for an op of that many cells and the padding before it. REQUIRES: submit_lock.
bool CpuBackend::make_room(Lane& lane, std::uint64_t cells) {
  const std::uint64_t need = lane.tail + 2 * cells;
  if (need <= lane.room_until) [[likely]]
    return true;
  lane.room_until = lane.done.load(std::memory_order_acquire) + lane.capacity;  // acquire: those cells are free again
  return need <= lane.room_until;
}

// The place for an op of that many cells: at the tail, or after padding at the ring's begin. REQUIRES: submit_lock,
// room.
PackedOp& CpuBackend::reserve(Lane& lane, std::uint64_t cells) {
  const std::uint64_t to_end = lane.capacity - (lane.tail & (lane.capacity - 1));
  if (to_end < cells) {
    PackedOp& padding = lane.at(lane.tail);
    padding.padding = true;
    padding.cells = static_cast<std::uint16_t>(to_end);
    lane.tail += to_end;
  }
  return lane.at(lane.tail);
}

// REQUIRES: submit_lock, room for the op and its waits. Returns the position after the op.
std::uint64_t CpuBackend::push(Lane& lane, const Op& op) {
  if (op.kind == OpKind::kWait) {
    if (op.point.stream == &lane) return lane.tail;  // its own order says so already
    if (!merge_waits_ || lane.legacy || op.name) {  // legacy: a barrier for others (rule 9); named: the allocator's own
      flush_pending(lane);
      return write(lane, op, {&op.point, 1});
    }
    if (lane.pending.count == kMaxWaits) flush_pending(lane);
    return keep_wait(lane, op);
  }
  if (op.kind == OpKind::kRecord && !op.event) {
    flush_pending(lane);
    // What observers are told of a blocking stream that was closed takes no position: a record behind that must differ
    // from one before it.
    if (lane.legacy && observed()) write(lane, kLoneWait, {});
    return lane.tail;
  }
  return write_behind_pending(lane, is_allocation_mark(op) ? kLoneWait : op);
}

// The next op carries this wait. REQUIRES: submit_lock, room, fewer than kMaxWaits are pending.
std::uint64_t CpuBackend::keep_wait(Lane& lane, const Op& op) {
  if (op.point.stream == &lane) return lane.tail;  // its own order says so already
  lane.pending.points[lane.pending.count++] = op.point;
  lane.has_pending.store(true, std::memory_order_relaxed);
  return lane.tail;
}

// Writes the op with the waits that came before it. REQUIRES: submit_lock, room.
std::uint64_t CpuBackend::write_behind_pending(Lane& lane, const Op& op) {
  if (lane.pending.count == 0) return write(lane, op, {});
  const std::span<const Point> waits(lane.pending.points, std::exchange(lane.pending.count, 0));
  lane.has_pending.store(false, std::memory_order_relaxed);
  return write(lane, op, waits);
}

// The waits that no op came for become one of their own. REQUIRES: submit_lock, room.
void CpuBackend::flush_pending(Lane& lane) {
  if (lane.pending.count > 0) write_behind_pending(lane, kLoneWait);
}

// The same from outside, before somebody looks at the lane's end.
void CpuBackend::settle_pending(Lane& lane) {
  if (!lane.has_pending.load(std::memory_order_relaxed)) return;
  lane.submit_lock.lock();
  flush_pending(lane);  // there is room: that of the op which never came
  const bool idle = rouse(lane);
  lane.submit_lock.unlock();
  if (idle) executor_->wake(lane);
}

// An exchange that is all done goes through the ring, and out of it, in one step: nobody else can take the lane, and
// nobody knows the op's position yet, so nobody waits for it. Without a read-modify-write or an acquire behind the
// posts of the exchange, which would wait until other ranks have let go of their lines. REQUIRES: submit_lock, room,
// the lane is left. Returns the position after the op.
std::uint64_t CpuBackend::write_ended(Lane& lane, const Op& op) {
  const std::uint64_t cells = cells_of(op);
  PackedOp& packed = reserve(lane, cells);
  pack(op, cells, {}, 0, packed);
  lane.tail += cells;
  execute(lane, packed, lane.tail);
  lane.head = lane.limit = lane.tail;
  lane.done.store(lane.tail, std::memory_order_release);       // what the op did is seen by who sees that it is done
  lane.published.store(lane.tail, std::memory_order_release);  // and who sees the op sees that, too
  return lane.tail;
}

// REQUIRES: submit_lock, room. Returns the position after the op.
std::uint64_t CpuBackend::write(Lane& lane, const Op& op, std::span<const Point> waits) {
  const std::uint64_t cells = cells_of(op, waits.size());
  const bool numbered = core_.options.policy != Policy::kConcurrent;
  pack(op, cells, waits, numbered ? issued_.fetch_add(1, std::memory_order_relaxed) + 1 : 0, reserve(lane, cells));
  lane.tail += cells;
  // The cells ahead were last read by another core: fetch them for writing before they are needed.
  __builtin_prefetch(&lane.ring[(lane.tail + kPrefetch) & (lane.capacity - 1)], 1);
  if (lane.queue) lane.queue->enqueue(lane);
  lane.published.store(lane.tail, std::memory_order_release);  // release: the cells are written
  return lane.tail;
}

// Whether the lane was idle with work in it; it is queued then, and the caller must wake the executor, or has it.
// REQUIRES: submit_lock, what was written is published.
bool CpuBackend::rouse(Lane& lane, LaneState becomes) {
  light_fence();  // see leave_if_empty()
  if (!lane.idle.load(std::memory_order_relaxed)) [[likely]]
    return false;
  // acquire: the lane as its last owner left it. Already false: that owner saw what we published and took it back.
  if (!lane.idle.exchange(false, std::memory_order_acquire)) return false;
  if (lane.done.load(std::memory_order_relaxed) ==
      lane.tail) {  // nothing new, or a waiting thread was quicker (Serial)
    lane.idle.store(true, std::memory_order_release);
    return false;
  }
  lane.state.store(becomes, std::memory_order_release);
  return true;
}

// An implicit wait. REQUIRES: submit_lock, room.
void CpuBackend::push_wait(Lane& lane, Lane& target, std::uint64_t position) {
  if (observed()) {
    tell({.kind = RecordKind::kBarrier,
          .device = core_.id,
          .stream = lane.last_id,
          .position = lane.tail,
          .other_stream = target.last_id,
          .other_position = position,
          .thread = thread_index()},
         lane.audience);
    // It has a position of its own then, done or not: what is recorded after it must differ from what was before.
  } else if (target.done.load(std::memory_order_acquire) >= position) {
    return;
  }
  flush_pending(lane);
  const Point point{&target, position};
  write(lane, kBarrierWait, {&point, 1});
}

}  // namespace slip
