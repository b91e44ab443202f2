#include "backend/cpu/serial.hpp"

#include <chrono>
#include <utility>

#include "backend/cpu/hardware_queue.hpp"
#include "backend/cpu/pack.hpp"
#include "backend/cpu/strict.hpp"
#include "base/clock.hpp"
#include "runtime/exit.hpp"

namespace slip {
namespace {
constexpr std::int64_t kNapNs = 50'000;
constexpr auto kRandomDelay = std::chrono::milliseconds(20);
}  // namespace

Serial::Serial(Policy policy, std::uint64_t seed, std::mutex& lanes_mutex, const std::vector<Lane*>& lanes)
    : policy_(policy), lanes_mutex_(lanes_mutex), lanes_(lanes), random_(seed) {}

Serial::~Serial() {
  {
    const std::lock_guard lock(work_mutex_);
    stopping_ = true;
  }
  work_changed_.notify_one();
  thread_.join();
}

void Serial::wake(Lane&) {
  const std::lock_guard lock(work_mutex_);
  if (!thread_.started())
    thread_.start(
        "slip serial", [this] { work(); }, true);
  if (pending_) return;
  pending_ = true;
  work_changed_.notify_one();
}

void Serial::work() {
  std::unique_lock lock(work_mutex_);
  while (!stopping_ && !exiting()) {
    work_changed_.wait(lock, [this] { return pending_ || stopping_; });
    if (stopping_) return;
    if (policy_ == Policy::kRandom)
      work_changed_.wait_for(lock, kRandomDelay, [this] { return stopping_ || hurried_; });
    pending_ = hurried_ = false;
    lock.unlock();
    bool left = true;
    while (left && !exiting()) {
      {
        const std::lock_guard drive(drive_);
        while (step()) {}
        const std::lock_guard lanes(lanes_mutex_);
        left = false;  // something waits for a word that the host or another device sets
        for (Lane* lane : lanes_)
          left |= lane->done.load(std::memory_order_relaxed) != lane->published.load(std::memory_order_relaxed);
      }
      if (!left) break;
      lock.lock();
      work_changed_.wait_for(lock, std::chrono::nanoseconds(kNapNs), [this] { return stopping_; });
      left = !stopping_;
      lock.unlock();
    }
    lock.lock();
  }
}

bool Serial::ready(Lane& lane) {
  // acquire: the cells up to `published` are written.
  while (lane.head != lane.published.load(std::memory_order_acquire)) {
    PackedOp& op = lane.at(lane.head);
    if (!op.padding) {
      if (unreached_point(op).stream || (lane.queue && !lane.queue->at_front(lane))) return false;
      if (op.kind == OpKind::kExchange) return exchange(lane, op, lane.head + op.cells, Exchange::By::kWorker);
      if (op.kind != OpKind::kWaitValue) return true;
      const StrictScope strict(lane, op);  // the word may lie in memory that is out of reach between ops
      return word_reached(op);
    }
    lane.head += op.cells;
    lane.done.store(lane.head, std::memory_order_release);
  }
  return false;
}

Lane* Serial::choose() {
  ready_.clear();
  {
    const std::lock_guard lock(lanes_mutex_);
    for (Lane* lane : lanes_) {
      if (ready(*lane)) ready_.push_back(lane);
    }
  }
  if (ready_.empty()) return nullptr;
  if (policy_ == Policy::kSingle) {
    Lane* first = ready_.front();
    for (Lane* lane : ready_) {
      // Waits have no number of their own; they cost nothing and free others, so they go first.
      const auto order = [](Lane& of) {
        PackedOp& op = of.at(of.head);
        return op.kind == OpKind::kWait ? 0 : op.number;
      };
      if (order(*lane) < order(*first)) first = lane;
    }
    return first;
  }
  // Half of the time go on with one stream, so that it runs far ahead of the others: even choices alone rarely do that.
  if (random_() % 8 == 0) favourite_ = ready_[random_() % ready_.size()];
  if (random_() % 2 == 0) {
    for (Lane* lane : ready_) {
      if (lane == favourite_) return lane;
    }
  }
  return ready_[random_() % ready_.size()];
}

// Runs one op. REQUIRES: drive_ held.
bool Serial::step() {
  Lane* lane = choose();
  if (!lane) return false;
  PackedOp& op = lane->at(lane->head);
  const std::uint64_t end = lane->head + op.cells;
  if (lane->queue) lane->queue->dispatch();
  execute(*lane, op, end);
  lane->head = end;
  // seq_cst, both: see Pool::publish(). Lanes of other devices may wait for this one.
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

// Somebody who cannot run ops himself waits: no reason to delay.
void Serial::hurry() {
  const std::lock_guard lock(work_mutex_);
  hurried_ = true;
  work_changed_.notify_one();
}

bool Serial::wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) {
  const auto reached = [&] { return lane.done.load(std::memory_order_acquire) >= position; };
  Parker nap;
  // An op cannot be left in the middle: who must be back in time lets the thread run it.
  const bool drives = deadline_ns == 0;
  if (!drives && !reached()) hurry();
  while (!reached()) {
    if (deadline_ns != 0 && now_ns() > deadline_ns) return false;
    bool moved = false;
    if (drives && drive_.try_lock()) {
      while (!reached() && step()) moved = true;
      drive_.unlock();
    }
    if (!moved && !reached()) nap.park(now_ns() + kNapNs);  // another thread runs an op, or a word must change
  }
  return true;
}

}  // namespace slip
