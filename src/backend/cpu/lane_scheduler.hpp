// LaneScheduler: decides which thread of a Pool runs a ready lane, and which lane an idle worker runs next.
//
// - A worker keeps the lanes that its ops make ready in its local queue; other lanes come into the shared queue.
// - An idle worker becomes the searcher if there is none. It spins, then sleeps 50 us or longer at a time, then parks.
//   While there is a searcher, short work is queued without a system call.
// - If a thread is stuck in a long op, the searcher shares that thread's local queue. So no thread keeps a local queue
//   while there is no searcher.
// - The searcher and waiting host threads poll the lanes that wait for flags in memory and for other ranks.
#pragma once

#include <array>
#include <atomic>
#include <functional>

#include "backend/cpu/executor.hpp"
#include "backend/cpu/pool_queues.hpp"
#include "backend/cpu/worker_table.hpp"
#include "base/clock.hpp"

namespace slip::backend {

// The machine's number of cores and the times that decide how a Pool spins, sleeps and shares; in ticks().
struct PoolLimits {
  explicit PoolLimits(int cores);

  bool one_core;
  std::uint64_t move_ticks;   // between two moves of a thread to another core
  std::uint64_t look_ticks;   // between two checks of an empty lane
  std::uint64_t long_ticks;   // a longer op is worth waking a thread for
  std::uint64_t heavy_ticks;  // a worker must not run a longer op with a short time slice: other threads would wait

  // Whether the next ops of the lane, or this one, are expected to be long.
  bool expected_long(const Lane& lane, const PackedOp* op = nullptr) const;
};

// The cores of the host thread that shared a lane last and of the worker that took one last. Hints.
class RecentCores {
 public:
  void note_host() { host_.store(base::current_core(), std::memory_order_relaxed); }
  void note_worker() { worker_.store(base::current_core(), std::memory_order_relaxed); }
  // Whether this worker is on the core of the host thread that fills lanes. If the other cores are busy, the scheduler
  // puts both on one core. Then the host cannot run while this worker spins and waits for the host's work.
  bool on_host_core() const { return base::current_core() == host_.load(std::memory_order_relaxed); }
  // Whether this host thread is on the core of the worker that runs lanes.
  bool on_worker_core() const { return base::current_core() == worker_.load(std::memory_order_relaxed); }
  // If all cores are busy, a woken thread starts on the core of the thread that woke it. Then the two share this core
  // instead of running concurrently, so the worker moves away.
  void leave_host_core() const { base::leave_core(host_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<int> host_{-1}, worker_{-1};
};

class LaneScheduler final : public base::Subscriber {
 public:
  // `work`: the loop of a worker. It takes lanes with next() and runs them.
  LaneScheduler(Executor& executor, const PoolLimits& limits, int compute_workers, std::function<void(Worker&)> work);

  // The next lane for this worker, which owns it then. Waits for one. Null: the pool ends.
  Lane* next(Worker& self);
  bool stopping() const { return workers_.stopping(); }

  // Queues a lane that can continue: a worker queues it for itself, another thread for all workers. If the worker's
  // queue is empty, the lane becomes its successor, which saves taking the lock.
  void make_ready(LaneRunner& self, Lane& lane);
  // Puts a lane, whose state is kQueued, into the shared queue, and makes sure that a thread will take it.
  void share(Lane& lane);
  bool has_shared() const { return shared_.any(); }  // a hint
  // This thread has a local queue and is about to run an op. `is_long`: the op is expected to be long, so other threads
  // get the queue now.
  void offer_local(LaneRunner& self, bool is_long);
  // A thread waits for queued work that it will not run itself.
  void hurry();

  // Gives `self` the engine for the lane's next op. False: no slot was free, and the lane is parked until it gets one.
  bool hold_engine(LaneRunner& self, Lane& lane, Engine engine);
  // Passes the held engine to the first lane that waits for it, or frees the slot.
  void release_engine(LaneRunner& self);
  bool engine_wanted(Engine engine) const { return engines_[static_cast<std::size_t>(engine)].wanted(); }

  // Parks the lane until its flag has the value, or until its exchange can continue.
  void park_on_flag(Lane& lane, PackedOp& op);
  // Queues the lanes whose flag or exchange is ready. False: there are none, or another thread polls at the moment.
  bool poll_flags(LaneRunner& self);
  void wake_up() noexcept override;  // a lane parked on an exchange may continue

  RecentCores& cores() { return cores_; }

 private:
  using Search = WorkerTable::Search;

  Lane* find(Worker& self);
  void share_local(LaneRunner& self);
  Lane* search(Worker& self);
  Lane* spin_for_work(Worker& self);
  Lane* sleep_for_work(Worker& self);
  Lane* take_abandoned();
  bool worth_taking() const;
  bool rescue_stuck();
  bool only_subscribed();

  Executor& executor_;
  const PoolLimits limits_;
  std::array<EngineSlots, kEngines> engines_;  // indexed by Engine
  alignas(64) SharedQueue shared_;
  FlagWaiters flags_;
  std::atomic<int> active_{0};  // workers that run lanes
  RecentCores cores_;
  std::atomic<bool> hurried_{false};  // on one core only, see hurry()
  // The searcher sleeps longer, because host threads (on one core) or workers run the queued lanes.
  std::atomic<bool> sleeps_long_{false};
  std::atomic<bool> trusts_notifications_{false};  // the sleeping searcher relies on wake_up()
  WorkerTable workers_;                            // last: its destructor waits for the threads that use the others
};

}  // namespace slip::backend
