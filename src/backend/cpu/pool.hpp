// Pool: the executor that runs lanes concurrently. Its threads are generic. An engine has a number of slots: several
// for compute, one for each copy direction, one for host functions. A thread must hold a slot to run an op on the
// engine.
//
// How lanes are assigned to threads:
// - A thread that runs a lane continues with it as long as the lane has ready ops. Lanes that its ops make ready go
//   into its local queue and run there next, so chains across streams stay on one core.
// - Before a thread starts an op that it expects to be long, it shares its local queue with the others. It expects
//   the mean time of the lane's ops so far; an unknown time counts as long.
// - At most one idle thread is the searcher. It spins, then sleeps 50 us at a time, then parks until it is woken.
//   While there is a searcher, short work is queued without a system call. If a thread is stuck in a long op, the
//   searcher shares that thread's local queue. So no thread keeps a local queue while there is no searcher.
// - A host thread that waits for a lane is a driver: it runs that lane, and the lanes it depends on, itself. On one
//   core a lane whose host waits after each submission is left to that host for a while.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "backend/cpu/executor.hpp"
#include "backend/cpu/pool_queues.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip::backend {

// The state of a thread that runs lanes: a worker, or a host thread that waits (a driver).
struct alignas(64) LaneRunner {
  base::BiasedLock lock;  // biased to the thread itself
  LaneList<&Lane::next> local SLIP_GUARDED_BY(lock);
  std::atomic<int> local_count{0};  // written under the lock, read without
  // Number of ops begun. If it stays the same, the searcher concludes that the thread is stuck in an op.
  std::atomic<std::uint64_t> steps{0};
  std::uint64_t steps_seen = 0;  // `steps` at the searcher's last check
  Lane* successor = nullptr;     // the lane to run next; not in `local`, which saves taking the lock
  std::uint64_t last_check = 0;  // ticks() of the last check of a lane that might be empty
  std::uint64_t moved = 0;       // ticks() when it last left the core of a host thread
  std::int64_t preemptions = 0;  // of this thread, by the scheduler, as last read
  Engine held = Engine::kNone;
  int empty_checks = 0;  // empty lanes checked since the last op
  bool is_worker = false;
  base::TimeSlice time_slice = base::TimeSlice::kUsual;
  std::atomic<bool> in_use{false};  // only in Pool::drivers_: a host thread uses this entry

  bool has_local() const { return successor || local_count.load(std::memory_order_relaxed) > 0; }
  // Not a fetch_add: the lock ensures one writer at a time.
  void count(int change) SLIP_REQUIRES(lock) {
    local_count.store(local_count.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
  Lane* take_local();
  void queue_successor();
  void use_time_slice(base::TimeSlice slice);
};

class Pool final : public Executor, public base::Subscriber {
 public:
  Pool(int compute_workers, int cores);
  ~Pool() override;
  void wake(Lane& lane) override;
  bool begins_early() const override { return true; }
  void end_begun(Lane& lane) override;
  bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) override;
  void hurry() override;
  void wake_up() noexcept override;  // a lane parked on an exchange may continue

 private:
  struct Worker {
    base::Thread thread;
    base::Parker parker;
    LaneRunner runner;
    bool active = false;    // runs lanes, counted in active_
    bool searcher = false;  // set by its waker, or by itself
  };
  enum class Search : std::uint32_t { kNone, kSpinning, kSleeping };

  // Running lanes (pool.cpp).
  void work(Worker& self);
  void run(LaneRunner& self, Lane& lane, std::uint64_t stop);
  bool should_yield(const LaneRunner& self, const Lane& lane, unsigned ops) const;
  bool start(LaneRunner& self, Lane& lane, PackedOp& op);
  void pace(LaneRunner& self);
  void note_time(LaneRunner& self, Lane& lane, std::uint64_t op_ticks) const;
  bool linger(LaneRunner& self, Lane& lane);
  // Whether this worker is on the core of the host thread that fills lanes. If the other cores are busy, the scheduler
  // puts both on one core. Then the host cannot run while this worker spins and waits for the host's work.
  bool shares_host_core() const { return base::current_core() == host_core_.load(std::memory_order_relaxed); }
  void publish(LaneRunner& self, Lane& lane);
  void wake_waiters(LaneRunner& self, Lane& lane);
  bool park_on_point(Lane& lane, Point point);
  void make_ready(LaneRunner& self, Lane& lane);
  bool drive(LaneRunner& self, Lane& lane, std::uint64_t position);

  // Engines (pool.cpp).
  bool hold_engine(LaneRunner& self, Lane& lane, Engine engine);
  void release_engine(LaneRunner& self);
  bool engine_wanted(Engine engine) const { return engines_[static_cast<std::size_t>(engine)].wanted(); }

  // Which thread searches, sleeps or is woken (pool_scheduling.cpp).
  Lane* next(Worker& self);
  Lane* find(Worker& self);
  Lane* take_shared();
  Lane* take_abandoned();
  void share(Lane& lane);
  void share_local(LaneRunner& self);
  void wake_one();
  void wake_searcher();
  void start_worker() SLIP_REQUIRES(sleep_mutex_);
  Lane* search(Worker& self);
  bool worth_taking() const;
  Lane* spin_for_work(Worker& self);
  Lane* sleep_for_work(Worker& self);
  bool rescue_stuck();
  bool work_left() const SLIP_REQUIRES(sleep_mutex_);
  bool any_local() const SLIP_REQUIRES(sleep_mutex_);  // whether some worker has a local queue
  void park(Worker& self);
  void leave_host_core(LaneRunner& self);
  bool expected_long(const Lane& lane, const PackedOp* op) const;

  // Lanes that wait for flags in memory and for other ranks (pool_scheduling.cpp).
  void park_on_flag(Lane& lane, PackedOp& op);
  bool poll_flags(LaneRunner* self);
  bool only_subscribed();

  const int max_workers_;
  const bool one_core_;
  const std::uint64_t move_ticks_;  // between two moves of a thread to another core
  const std::uint64_t look_ticks_;  // between two checks of an empty lane
  const std::uint64_t long_ticks_;  // a longer op is worth waking a thread for
  // A worker must not run an op longer than this with a short time slice: other threads would wait too long for the
  // core.
  const std::uint64_t heavy_ticks_;

  std::array<EngineSlots, kEngines> engines_;  // indexed by Engine

  alignas(64) base::SpinLock shared_lock_;
  LaneList<&Lane::shared_next> shared_ SLIP_GUARDED_BY(shared_lock_);
  alignas(64) std::atomic<int> shared_count_{0};
  std::atomic<bool> shared_urgent_{false};  // it has a lane whose ops are expected to be long
  std::atomic<int> active_{0};              // workers that run lanes
  std::atomic<Search> search_{Search::kNone};
  std::atomic<bool> stopping_{false};
  // The cores of the host thread that shared a lane last and of the worker that took one last. Hints, see
  // shares_host_core().
  std::atomic<int> host_core_{-1}, worker_core_{-1};
  std::atomic<bool> hurried_{false};  // on one core only, see hurry()
  // The searcher sleeps longer, because host threads (on one core) or workers run the queued lanes.
  std::atomic<bool> sleeps_long_{false};

  FlagWaiters flag_waiters_;
  std::atomic<bool> trusts_notifications_{false};  // the sleeping searcher relies on wake_up()

  base::Mutex sleep_mutex_;
  std::vector<Worker*> parked_ SLIP_GUARDED_BY(sleep_mutex_);
  Worker* sleeping_searcher_ SLIP_GUARDED_BY(sleep_mutex_) = nullptr;
  bool notified_ SLIP_GUARDED_BY(sleep_mutex_) = false;  // wake_up() was called since the searcher's last check
  std::vector<std::unique_ptr<Worker>> workers_ SLIP_GUARDED_BY(sleep_mutex_);

  std::array<LaneRunner, 16> drivers_;  // for host threads that wait
  LaneRunner host_;                     // for host threads that do not wait; only its is_worker == false is used
};

}  // namespace slip::backend
