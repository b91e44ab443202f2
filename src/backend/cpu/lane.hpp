// Lane: a stream of the cpu device: a ring of packed ops, filled by the host and run by one thread at a time.
//
// Positions count 64-byte cells and never go back, so that a completion token is just (lane, position): the point is
// reached when `done` is at least the position. A record costs nothing, a wait is one cell.
//
// Thread rules: the producer's fields are guarded by `submit_lock`; the owner's fields belong to the thread that moved
// `state` to kRunning; everything else is atomic or guarded as said.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/biased_lock.hpp"
#include "base/sync.hpp"
#include "runtime/core.hpp"
#include "runtime/exchange.hpp"
#include "runtime/stamp.hpp"

namespace slip {

struct Lane;
class Executor;
class HardwareQueue;

struct alignas(64) Cell {
  std::byte bytes[64];
};

// Waits that one op can carry: so many streams may be joined before a launch without an op of their own.
inline constexpr std::size_t kMaxWaits = 8;

// The first cell of an op; ranges, scalars and further waits follow it in the ring. Any op may carry waits: it runs
// when `target` has reached `number`, and each of more_list() is reached. Waits without an op behind them are a kWait.
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
  bool barrier;  // the wait is an implicit one: it orders, but carries no failure
  std::uint8_t more_waits;
  union {
    const Kernel* kernel;         // kKernel
    std::function<void()>* host;  // kHost; owned
    Stamp* stamp;                 // kRecord; counted
    Exchange* exchange;           // kExchange
  };
  Lane* target;          // null: no wait
  std::uint64_t number;  // the position waited for; without a wait the order of issue

  Here here() const { return {file, line}; }
  Piece* pieces() { return reinterpret_cast<Piece*>(reinterpret_cast<Cell*>(this) + 1); }
  Scalar* scalar_list() { return reinterpret_cast<Scalar*>(pieces() + reads + writes); }
  Point* more_list() { return reinterpret_cast<Point*>(scalar_list() + scalars); }
};
static_assert(sizeof(PackedOp) == sizeof(Cell), "an op without ranges takes one cell, one cache line");

static_assert(sizeof(Scalar) % alignof(Point) == 0, "points follow scalars");

// Waits that the next op will carry.
struct PendingWaits {
  std::size_t count = 0;
  Point points[kMaxWaits];
};

// Somebody who waits until a lane has reached a position: another lane or a thread.
struct Waiter {
  std::uint64_t position = 0;
  Lane* lane = nullptr;      // to be made ready, or
  Parker* parker = nullptr;  // to be woken
  Waiter* next = nullptr;
};

enum class LaneState : std::uint32_t {  // of a lane that is not idle
  kQueued,                              // in the shared queue, anyone may claim it
  kLocal,                               // in the queue of a thread that will run it soon
  kRunning,                             // owned by a thread
  kParked,                              // waits for a point, a word, an engine or its hardware queue
};

struct Lane : StreamState {
  // Each group has cache lines of its own: the host writes the first two per op, the running thread the third and the
  // last, and what both read changes rarely.

  // --- producer, guarded by submit_lock ---
  alignas(64) BiasedLock submit_lock;
  std::uint64_t tail = 0;
  std::uint64_t room_until = 0;               // tail may grow to here before `done` must be read again
  std::atomic<std::uint64_t> legacy_seen{0};  // position of the legacy lane that this one already waits for
  std::uint64_t seen_by_legacy = 0;           // position that the legacy lane already waits for
  std::atomic<bool> has_pending{false};
  bool joins_legacy = false;  // a blocking stream; constant while open
  PendingWaits pending;

  alignas(64) std::atomic<std::uint64_t> published{0};  // end of what was submitted
  alignas(64) std::atomic<std::uint64_t> done{0};       // end of what has run

  // --- read by everyone ---
  alignas(64) std::atomic<LaneState> state{LaneState::kRunning};
  std::atomic<bool> has_waiters{false};
  std::atomic<std::uint32_t> syncs{0};    // times the host waited for this lane: it would rather run it itself
  std::atomic<Lane*> parked_on{nullptr};  // whom a driver should drive to free this lane
  std::atomic<std::uint64_t> parked_position{0};
  BiasedLock wait_lock;
  Waiter* waiters = nullptr;  // guarded by wait_lock

  alignas(64) std::unique_ptr<Cell[]> ring;  // this group changes rarely: the host reads it at each op
  std::uint64_t capacity = 0;                // cells, a power of two
  HardwareQueue* queue = nullptr;
  std::atomic<bool> idle{true};              // empty and left alone; who sets it to false has the lane
  std::atomic<int> leaving{0};               // threads that made it idle and still look whether that was too early
  std::atomic<Executor*> executor{nullptr};  // who runs it; threads of other devices look here, too
  int queue_index = -1;

  // --- owner ---
  alignas(64) std::uint64_t head = 0;
  std::uint64_t limit = 0;                     // `published` as last read
  std::atomic<std::uint64_t> op_ticks{~0ull};  // mean duration of an op; all ones: not known yet. Others read it
  int looks = 0;                               // at it while it was empty
  std::uint32_t syncs_seen = 0;
  std::uint32_t visits = 0;        // by threads that ran it
  Engine granted = Engine::kNone;  // an engine that was handed to this lane while parked
  bool dispatched = false;         // the op at head has left its hardware queue
  Waiter waiter;                   // this lane in another one's list
  Lane* next = nullptr;            // in a thread's queue or an engine's, guarded by that
  Lane* shared_next = nullptr;     // in the shared queue; a claimed lane may still have an entry there
  bool enqueued = false;           // has one, guarded by the queue, as are the next three
  bool left_to_host = false;       // one core: its host waits for what it submits, and so runs it without a switch
  std::uint32_t syncs_shared = 0;  // `syncs` when it was shared last
  std::uint64_t done_looked = 0;   // `done` when the napping thread looked last
  bool told = false;               // parked on a word, and somebody tells when that may end; guarded by the words' lock
  bool queue_parked = false;       // waits for its hardware queue, guarded by it

  PackedOp& at(std::uint64_t position) { return *reinterpret_cast<PackedOp*>(&ring[position & (capacity - 1)]); }
  bool drained() const {
    return done.load(std::memory_order_acquire) == published.load(std::memory_order_acquire) &&
           idle.load(std::memory_order_acquire) && !has_pending.load(std::memory_order_relaxed);
  }
};

// Leaves an empty lane idle; false: more came meanwhile, and it is still the caller's.
bool leave_if_empty(Lane& lane);
// Takes the waiters that the lane has served: wakes threads, returns lanes in their order, linked by Waiter::next.
Waiter* take_served(Lane& lane);
// Lets a kExchange go on. False: it waits for others. One whose stream or device has failed is not begun.
bool exchange(Lane& lane, PackedOp& op, std::uint64_t position, Exchange::By by);
// Runs the op, or skips it when its stream or device has failed; keeps errors, sets stamps, tells observers. Never
// throws.
void execute(Lane& lane, PackedOp& op, std::uint64_t position);

}  // namespace slip
