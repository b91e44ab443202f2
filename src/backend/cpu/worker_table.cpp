#include "backend/cpu/worker_table.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::backend {

// --- a thread that runs lanes ---

Lane* LaneRunner::take_local() {
  if (Lane* lane = std::exchange(successor, nullptr)) {
    lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
    return lane;
  }
  if (local_count.load(std::memory_order_relaxed) == 0) return nullptr;
  const base::LockGuard guard(lock);
  Lane* lane = local.pop();
  if (!lane) return nullptr;
  count(-1);
  lane->state.store(LaneState::kRunning, std::memory_order_relaxed);
  return lane;
}

// Moves the successor to `local`, where the searcher can find it, because this thread is about to run an op.
void LaneRunner::queue_successor() {
  if (!successor) return;
  const base::LockGuard guard(lock);
  local.push(*successor);
  count(+1);
  successor = nullptr;
}

// A worker that waits for other ranks needs the core rarely, but without delay, so it takes a short time slice. A
// worker that computes takes the usual one.
void LaneRunner::use_time_slice(base::TimeSlice slice) {
  if (!is_worker || time_slice == slice) return;
  base::set_time_slice(time_slice = slice);
}

// --- the table ---

WorkerTable::WorkerTable(int max_workers, std::function<void(Worker&)> work, const SharedQueue& shared,
                         const FlagWaiters& flags)
    : max_workers_(max_workers), work_(std::move(work)), shared_(shared), flags_(flags) {
  workers_.reserve(static_cast<std::size_t>(max_workers_));
}

WorkerTable::~WorkerTable() {
  stopping_.store(true, std::memory_order_seq_cst);
  {
    const base::LockGuard lock(mutex_);
    for (Worker* worker : parked_) worker->parker.unpark();
    if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
  }
  for (auto& worker : workers_) worker->thread.join();
}

bool WorkerTable::begin_sleep(Worker& self) {
  const base::LockGuard lock(mutex_);
  sleeping_searcher_ = &self;
  search_.store(Search::kSleeping, std::memory_order_seq_cst);
  return std::exchange(notified_, false);
}

void WorkerTable::end_sleep() {
  const base::LockGuard lock(mutex_);
  sleeping_searcher_ = nullptr;
  search_.store(Search::kSpinning, std::memory_order_seq_cst);
}

void WorkerTable::park(Worker& self) {
  {
    const base::LockGuard lock(mutex_);
    if (stopping()) return;
    // Another thread may have shared work and found no parked thread, before this one was in the list.
    if (work_left() && take_search()) {
      self.searcher = true;
      return;
    }
    parked_.push_back(&self);
  }
  for (;;) {
    self.parker.park();  // may also return early, for an unpark() that was meant for an earlier timed sleep
    const base::LockGuard lock(mutex_);
    if (self.searcher || stopping()) return;
  }
}

void WorkerTable::wake_one() {
  Worker* woken = nullptr;
  {
    const base::LockGuard lock(mutex_);
    if (stopping()) return;
    if (parked_.empty() && static_cast<int>(workers_.size()) >= max_workers_)
      return;  // all workers are busy: they check the shared queue when they are done
    if (!take_search()) return;
    if (parked_.empty()) return start_worker();
    woken = parked_.back();
    parked_.pop_back();
    woken->searcher = true;
  }
  woken->parker.unpark();
}

// If the system is out of threads, work continues with the existing ones.
void WorkerTable::start_worker() {
  workers_.push_back(std::make_unique<Worker>());
  Worker& worker = *workers_.back();
  worker.runner.is_worker = true;
  worker.searcher = true;
  try {
    worker.thread.start(
        fmt::format("slip worker {}", workers_.size()), [this, &worker] { work_(worker); }, true);
  } catch (...) {
    workers_.pop_back();
    search_.store(Search::kNone, std::memory_order_seq_cst);
    if (workers_.empty()) throw;
  }
}

void WorkerTable::wake_searcher() {
  const base::LockGuard lock(mutex_);
  if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
}

void WorkerTable::notify() {
  const base::LockGuard lock(mutex_);
  notified_ = true;
  if (sleeping_searcher_) sleeping_searcher_->parker.unpark();
}

bool WorkerTable::any_local() {
  const base::LockGuard lock(mutex_);
  return local_left();
}

bool WorkerTable::search_left() {
  const base::LockGuard lock(mutex_);
  return work_left();
}

bool WorkerTable::local_left() const {
  return std::ranges::any_of(
      workers_, [](const auto& worker) { return worker->runner.local_count.load(std::memory_order_relaxed) > 0; });
}

// Whether there is work to take, a flag to poll, or a worker has a local queue and may be stuck in a long op.
bool WorkerTable::work_left() const {
  return shared_.any(std::memory_order_seq_cst) || flags_.any(std::memory_order_seq_cst) || local_left();
}

}  // namespace slip::backend
