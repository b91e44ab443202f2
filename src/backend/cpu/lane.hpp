// Lane: a stream of the cpu device, used by CpuBackend and its Executor. It is a ring of packed ops: host threads write
// them, and one thread at a time runs them.
//
// Positions count 64-byte cells and only increase. So the pair (lane, position) identifies a point, which is reached
// when `done` is at least the position. A record costs nothing; a wait takes one cell.
//
// Thread rules: `submit_lock` guards the fields of the producer. The fields of the owner belong to the thread that
// changed `state` to kRunning. All others are atomic or guarded as their comments say.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/biased_lock.hpp"
#include "base/sync.hpp"
#include "runtime/backend.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"

namespace slip::backend {

struct Lane;
class Executor;
class HardwareQueue;

// An aligned pair of cache lines.
inline constexpr std::size_t kLinePair = 128;

struct alignas(64) Cell {
  std::byte bytes[64];
};

// The number of waits that one op can carry, so that they need no ops of their own.
inline constexpr std::size_t kMaxWaits = 8;

// The first cell of an op; ranges, scalars and further waits follow it in the ring. Any op may carry waits: it runs
// when `target` has reached `number` and each point of more_list() is reached. Waits without a following op are written
// as a kWait.
struct PackedOp {
  OpKind kind;
  Engine engine;
  bool opaque;
  bool padding;  // fills the ring up to its end: an op never wraps around
  std::uint32_t value;
  std::uint16_t cells;
  std::uint16_t reads, writes, scalars;
  Name name;
  const char* file;
  std::int32_t line;
  bool barrier;  // the wait is implicit: it orders the streams, but does not propagate failures
  std::uint8_t more_waits;
  union {
    const Kernel* kernel;         // kKernel
    std::function<void()>* host;  // kHost; owned
    runtime::Stamp* stamp;        // kRecord; this op holds a reference
    runtime::Exchange* exchange;  // kExchange
  };
  Lane* target;          // null: no wait
  std::uint64_t number;  // the position waited for; without a wait, the order of issue
};
static_assert(sizeof(PackedOp) == sizeof(Cell), "an op without ranges takes one cell, one cache line");

inline Here here(const PackedOp& op) { return {op.file, op.line}; }
// The lists that follow the first cell.
inline ArgBytes* pieces(PackedOp& op) { return reinterpret_cast<ArgBytes*>(reinterpret_cast<Cell*>(&op) + 1); }
inline Scalar* scalar_list(PackedOp& op) { return reinterpret_cast<Scalar*>(pieces(op) + op.reads + op.writes); }
inline StreamPoint* more_list(PackedOp& op) { return reinterpret_cast<StreamPoint*>(scalar_list(op) + op.scalars); }
static_assert(sizeof(Scalar) % alignof(StreamPoint) == 0, "points follow scalars");

// Waits that the next op of the stream will carry.
struct PendingWaits {
  std::size_t count = 0;
  StreamPoint points[kMaxWaits];
};

// A lane or a thread that waits until another lane has reached a position.
struct Waiter {
  std::uint64_t position = 0;
  Lane* lane = nullptr;            // to be made ready, or
  base::Parker* parker = nullptr;  // to be woken
  Waiter* next = nullptr;
};

enum class LaneState : std::uint32_t {  // meaningful while the lane is not idle
  kQueued,                              // in the shared queue: any thread may claim it
  kLocal,                               // in the queue of a thread that will run it soon
  kRunning,                             // owned by a thread
  kParked,                              // waits for a point, a flag, an exchange, an engine or its hardware queue
};

struct Lane : runtime::StreamState {
  // Each group has its own pairs of cache lines: cores fetch the second line of an aligned pair with the first one.
  // With each op, the host writes the first two groups (the producer's fields and `published`), and the running thread
  // writes the last one (`done` and the owner's fields). The fields that both read change rarely.

  // --- producer, guarded by submit_lock ---
  alignas(kLinePair) base::BiasedLock submit_lock;
  std::uint64_t tail SLIP_GUARDED_BY(submit_lock) = 0;
  // `tail` may increase to here before `done` must be read again.
  std::uint64_t room_until SLIP_GUARDED_BY(submit_lock) = 0;
  std::atomic<std::uint64_t> legacy_seen{0};  // position of the legacy lane that this lane already waits for
  // Position that the legacy lane already waits for.
  std::uint64_t seen_by_legacy SLIP_GUARDED_BY(submit_lock) = 0;
  std::atomic<bool> has_pending{false};
  bool joins_legacy = false;  // a blocking stream; constant while open
  PendingWaits pending SLIP_GUARDED_BY(submit_lock);

  alignas(kLinePair) std::atomic<std::uint64_t> published{0};  // end of the submitted ops

  // --- read by all threads ---
  alignas(kLinePair) std::atomic<LaneState> state{LaneState::kRunning};
  std::atomic<bool> has_waiters{false};
  std::atomic<std::uint32_t> syncs{0};  // how often the host waited for this lane
  // If this lane is parked: the lane that a waiting host thread should run to unblock it.
  std::atomic<Lane*> parked_on{nullptr};
  std::atomic<std::uint64_t> parked_position{0};
  base::BiasedLock wait_lock;
  Waiter* waiters SLIP_GUARDED_BY(wait_lock) = nullptr;

  alignas(64) std::unique_ptr<Cell[]> ring;  // this group changes rarely; the host reads it with each op
  std::uint64_t capacity = 0;                // cells, a power of two
  HardwareQueue* queue = nullptr;
  std::atomic<bool> idle{true};  // empty and without an owner; the thread that sets it to false owns the lane
  std::atomic<int> leaving{0};   // threads that set `idle` and have not yet checked whether work came meanwhile
  std::atomic<Executor*> executor{nullptr};  // also read by threads of other devices
  int queue_index = -1;

  // --- owner ---
  alignas(kLinePair) std::atomic<std::uint64_t> done{0};  // end of the finished ops; read by other threads
  alignas(64) std::uint64_t head = 0;
  std::uint64_t limit = 0;                     // `published` as last read
  std::atomic<std::uint64_t> op_ticks{~0ull};  // mean duration of an op; all ones: not known yet. Read by other threads
  int checks = 0;                              // consecutive checks that found this lane empty
  std::uint32_t syncs_seen = 0;
  std::uint32_t visits = 0;        // how often a thread began to run it
  Engine granted = Engine::kNone;  // an engine slot that this lane got while it was parked
  bool dispatched = false;         // the op at head has left its hardware queue
  Waiter waiter;                   // entry of this lane in the list of the lane it waits for
  Lane* next = nullptr;            // link in the queue of a thread or an engine; guarded by the lock of that queue
  Lane* shared_next = nullptr;     // link in the shared queue; a claimed lane may still have an entry there
  bool enqueued = false;           // has such an entry; guarded by the lock of SharedQueue, as are the next three
  // Only on one core: the host waits after each submission, so it runs the lane itself, without a thread switch.
  bool left_to_host = false;
  std::uint32_t syncs_shared = 0;  // `syncs` when the lane was last put into the shared queue
  std::uint64_t done_checked = 0;  // `done` at the last check of the sleeping searcher
  bool subscribed = false;         // parked on an exchange that notifies the pool; guarded by FlagWaiters
  bool queue_parked = false;       // waits in its hardware queue; guarded by its lock
};

inline PackedOp& op_at(Lane& lane, std::uint64_t position) {
  return *reinterpret_cast<PackedOp*>(&lane.ring[position & (lane.capacity - 1)]);
}
// Makes an empty lane idle. False: work came meanwhile, and the caller still owns the lane.
bool leave_if_empty(Lane& lane);
// Removes the waiters whose position is reached. Wakes the threads among them, and returns the lanes in list order,
// linked by Waiter::next.
Waiter* take_served(Lane& lane);
// Advances a kExchange. False: it waits for other ranks. If its stream or device has failed, it is not begun.
bool exchange(Lane& lane, PackedOp& op, std::uint64_t position, runtime::Exchange::By by);
// Ends a kExchange that is done. False: it failed, and so did the stream.
bool finish_exchange(Lane& lane, const Op& op, std::uint64_t position) noexcept;
// Runs the op, or skips it if its stream or device has failed. Keeps errors, sets time stamps, notifies observers.
// Never throws.
void execute(Lane& lane, PackedOp& op, std::uint64_t position);

}  // namespace slip::backend
