#include "backend/cpu/serial.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "backend/cpu/pack.hpp"
#include "backend/cpu/strict.hpp"
#include "base/clock.hpp"

namespace slip::backend {
namespace {
constexpr std::int64_t kRandomDelayNs = 20'000'000;
}  // namespace

Serial::Serial(CpuPolicy policy, std::uint64_t seed, base::Mutex& lanes_mutex, const std::vector<Lane*>& lanes)
    : policy_(policy), lanes_mutex_(lanes_mutex), lanes_(lanes), random_(seed) {}

Serial::~Serial() {
  {
    const base::LockGuard lock(work_mutex_);
    stopping_ = true;
  }
  work_changed_.notify_one();
  thread_.join();
}

void Serial::wake(Lane&) {
  const base::LockGuard lock(work_mutex_);
  if (!thread_.started())
    thread_.start(
        "slip serial", [this] { work(); }, true);
  if (pending_) return;
  pending_ = true;
  work_changed_.notify_one();
}

void Serial::work() {
  while (!runtime::exiting()) {
    {
      const base::LockGuard lock(work_mutex_);
      while (!pending_ && !stopping_) work_changed_.wait(work_mutex_);
      if (stopping_) return;
      if (policy_ == CpuPolicy::kRandom) sleep(kRandomDelayNs, true);
      pending_ = hurried_ = false;
    }
    while (!runtime::exiting() && run_ready()) {
      const base::LockGuard lock(work_mutex_);
      sleep(base::kOpWait.sleep_ns, false);
      if (stopping_) return;
    }
  }
}

// Sleeps until the time has passed or the device closes. With `until_hurried` it also returns when a thread calls
// hurry().
void Serial::sleep(std::int64_t time_ns, bool until_hurried) {
  const std::int64_t end_ns = base::now_ns() + time_ns;
  while (!stopping_ && !(until_hurried && hurried_)) {
    const std::int64_t left_ns = end_ns - base::now_ns();
    if (left_ns <= 0) return;
    work_changed_.wait_for(work_mutex_, std::chrono::nanoseconds(left_ns));
  }
}

// Runs all ready ops. True: some ops are left, which wait for a flag or for another device or rank.
bool Serial::run_ready() {
  const base::LockGuard drive(drive_);
  while (step()) {}
  const base::LockGuard lanes(lanes_mutex_);
  return std::ranges::any_of(lanes_, [](const Lane* lane) {
    return lane->done.load(std::memory_order_relaxed) != lane->published.load(std::memory_order_relaxed);
  });
}

bool Serial::ready(Lane& lane) {
  // acquire: the cells up to `published` are written.
  while (lane.head != lane.published.load(std::memory_order_acquire)) {
    PackedOp& op = op_at(lane, lane.head);
    if (!op.padding) {
      if (unreached_point(op).stream || (lane.queue && !lane.queue->at_front(lane))) return false;
      if (op.kind == OpKind::kExchange) return exchange(lane, op, lane.head + op.cells, runtime::Exchange::By::kWorker);
      if (op.kind != OpKind::kWaitValue) return true;
      const StrictScope strict(lane, op);  // the flag may be in memory that is protected between ops
      return flag_reached(op);
    }
    lane.head += op.cells;
    lane.done.store(lane.head, std::memory_order_release);
  }
  return false;
}

Lane* Serial::choose() {
  ready_.clear();
  {
    const base::LockGuard lock(lanes_mutex_);
    for (Lane* lane : lanes_) {
      if (ready(*lane)) ready_.push_back(lane);
    }
  }
  if (ready_.empty()) return nullptr;
  if (policy_ == CpuPolicy::kSingle) {
    // Waits have no issue number. They take no time and let other streams continue, so they go first.
    const auto order = [](Lane& lane) {
      PackedOp& op = op_at(lane, lane.head);
      return op.kind == OpKind::kWait ? 0 : op.number;
    };
    return *std::ranges::min_element(ready_, [&](Lane* a, Lane* b) { return order(*a) < order(*b); });
  }
  // With a probability of one half, a preferred stream continues, so that it runs far ahead of the others. Uniform
  // choices alone would rarely do that.
  if (random_() % 8 == 0) preferred_ = ready_[random_() % ready_.size()];
  if (random_() % 2 == 0 && std::ranges::find(ready_, preferred_) != ready_.end()) return preferred_;
  return ready_[random_() % ready_.size()];
}

// Runs one op. False: none is ready.
bool Serial::step() {
  Lane* lane = choose();
  if (!lane) return false;
  PackedOp& op = op_at(*lane, lane->head);
  const std::uint64_t end = lane->head + op.cells;
  if (lane->queue) lane->queue->dispatch();
  execute(*lane, op, end);
  lane->head = end;
  // seq_cst, both: see Pool::publish(). Lanes of other devices may wait for this lane.
  lane->done.store(end, std::memory_order_seq_cst);
  if (lane->has_waiters.load(std::memory_order_seq_cst)) {
    for (Waiter* served = take_served(*lane); served;) {
      Lane& other = *std::exchange(served, served->next)->lane;
      other.executor.load(std::memory_order_relaxed)->wake_from_outside(other);
    }
  }
  leave_if_empty(*lane);
  return true;
}

bool Serial::wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) {
  const auto reached = [&] { return lane.done.load(std::memory_order_acquire) >= position; };
  base::Backoff backoff(base::kOpWait);
  // A thread with a deadline does not run ops, because it could not return in the middle of one. Serial's thread runs
  // them.
  const bool drives = deadline_ns == 0;
  if (!drives && !reached()) hurry();
  while (!reached()) {
    if (deadline_ns != 0 && base::now_ns() > deadline_ns) return false;
    bool moved = false;
    if (drives && drive_.try_lock()) {
      while (!reached() && step()) moved = true;
      drive_.unlock();
    }
    if (!moved && !reached()) backoff.pause();  // another thread runs an op, or a flag must change
  }
  return true;
}

}  // namespace slip::backend
