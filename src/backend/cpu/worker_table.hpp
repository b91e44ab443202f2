// WorkerTable: the worker threads of a Pool, which of them are parked, and which one is the searcher.
//
// At most one idle worker is the searcher: it looks for work, with or without sleeping, see LaneScheduler. The others
// are parked until they become the searcher. A worker that finds a lane wakes the next searcher if one is needed.
// Threads are started one by one, when there is work and no parked worker.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

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

struct Worker {
  base::Thread thread;
  base::Parker parker;
  LaneRunner runner;
  bool active = false;    // runs lanes, counted in LaneScheduler::active_
  bool searcher = false;  // set by its waker, or by itself
};

class WorkerTable {
 public:
  enum class Search : std::uint32_t { kNone, kSpinning, kSleeping };

  // `work`: the loop of a worker. A searcher is needed as long as `shared` has lanes or `flags` must be polled.
  WorkerTable(int max_workers, std::function<void(Worker&)> work, const SharedQueue& shared, const FlagWaiters& flags);
  ~WorkerTable();  // ends the workers; waits until their loops return

  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  // The state of the searcher. Each caller states why its order suffices.
  Search search(std::memory_order order) const { return search_.load(order); }
  // Makes the calling worker the searcher. False: there is one.
  bool begin_search(Worker& self) { return self.searcher = take_search(); }
  // seq_cst: the caller then reads what other threads have queued, see LaneScheduler::search().
  void end_search(Worker& self) {
    self.searcher = false;
    search_.store(Search::kNone, std::memory_order_seq_cst);
  }
  // Before and after a sleep of the searcher. begin_sleep(): whether notify() was called since its last check.
  bool begin_sleep(Worker& self);
  void end_sleep();
  // Parks the worker until it is woken as the searcher or to stop. If there is work and no searcher, returns at once as
  // the searcher.
  void park(Worker& self);

  // Makes a parked worker the searcher, or starts a new worker. Does nothing if there is already a searcher.
  void wake_one();
  void wake_searcher();  // if it sleeps; has no effect on a searcher that is about to sleep
  void notify();         // the same, and a searcher that is about to sleep does not sleep

  bool any_local();    // whether some worker has a local queue
  bool search_left();  // whether a searcher is needed
  // Calls visit(LaneRunner&) for each worker. `visit` must not wake a worker.
  template <class Visit>
  void for_each(const Visit& visit) {
    const base::LockGuard lock(mutex_);
    for (const auto& worker : workers_) visit(worker->runner);
  }

 private:
  bool take_search() {
    Search none = Search::kNone;
    return search_.compare_exchange_strong(none, Search::kSpinning, std::memory_order_seq_cst);
  }
  void start_worker() SLIP_REQUIRES(mutex_);
  bool local_left() const SLIP_REQUIRES(mutex_);
  bool work_left() const SLIP_REQUIRES(mutex_);

  const int max_workers_;
  const std::function<void(Worker&)> work_;
  const SharedQueue& shared_;
  const FlagWaiters& flags_;
  std::atomic<Search> search_{Search::kNone};
  std::atomic<bool> stopping_{false};

  base::Mutex mutex_;
  std::vector<Worker*> parked_ SLIP_GUARDED_BY(mutex_);
  Worker* sleeping_searcher_ SLIP_GUARDED_BY(mutex_) = nullptr;
  bool notified_ SLIP_GUARDED_BY(mutex_) = false;  // notify() was called since the searcher's last check
  std::vector<std::unique_ptr<Worker>> workers_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::backend
