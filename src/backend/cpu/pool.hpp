// Pool: runs lanes concurrently. Threads are generic; engines are counted slots (several for compute, one for each copy
// direction, one for host functions) that a thread must hold to run an op on them.
//
// Who runs what:
// - A thread that runs a lane goes on with it as long as it has ready ops. Lanes that its ops make ready go into the
// thread's
//   own queue and are run by it next, so chains across streams stay on one core.
// - Before it starts an op expected to be long, it hands its queue to the others. "Expected" is the mean time of the
// lane's
//   ops so far; unknown counts as long.
// - At most one idle thread searches: it spins, then naps 50 us at a time, then sleeps. While one searches or naps,
// work
//   that is expected to be short is queued without a system call. The searcher also takes over the queue of a thread
//   that turned out to be stuck in a long op, so no thread keeps a queue while nobody searches.
// - Who waits for a lane runs it, and what it depends on, itself. On one core a lane whose host waits each time is left
// to
//   that host for a while.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "backend/cpu/executor.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip {

// An intrusive queue of lanes; the holder guards it.
template <Lane* Lane::*Next>
class LaneList {
 public:
  void push(Lane& lane) {
    lane.*Next = nullptr;
    if (last_) last_->*Next = &lane;
    else first_ = &lane;
    last_ = &lane;
  }
  Lane* pop() {
    Lane* lane = first_;
    if (lane) {
      first_ = lane->*Next;
      if (!first_) last_ = nullptr;
    }
    return lane;
  }

 private:
  Lane* first_ = nullptr;
  Lane* last_ = nullptr;
};

// A thread that runs lanes: a worker, or a host thread that waits.
struct alignas(64) Runner {
  BiasedLock lock;  // guards `local`; leans to the thread itself
  LaneList<&Lane::next> local;
  std::atomic<int> local_count{0};      // written under the lock, read without
  std::atomic<std::uint64_t> steps{0};  // ops begun, so that the searcher can see who is stuck
  std::uint64_t steps_seen = 0;         // by the searcher
  Lane* successor = nullptr;            // the lane to run next, kept out of `local` while no op runs: saves its lock
  std::uint64_t looked = 0;             // ticks() of the last look at a lane that might be empty
  std::uint64_t moved = 0;              // ticks() when it last left the core of a host thread
  std::int64_t preemptions = 0;         // of this thread, as last read
  Engine held = Engine::kNone;
  int fruitless = 0;  // empty lanes looked at since the last op
  bool is_worker = false;
  TimeSlice time_slice = TimeSlice::kUsual;
  std::atomic<bool> in_use{false};  // drivers: slot taken

  // REQUIRES: lock. Not a fetch_add: there is one writer at a time.
  bool has_local() const { return successor || local_count.load(std::memory_order_relaxed) > 0; }
  void count(int change) {
    local_count.store(local_count.load(std::memory_order_relaxed) + change, std::memory_order_relaxed);
  }
};

struct EngineSlots {
  SpinLock lock;
  int free = 0;
  LaneList<&Lane::next> waiting[3];  // by priority, highest first; copies and host functions use the last only
  std::atomic<int> waiting_count{0};
};

class Pool final : public Executor, public Sleeper {
 public:
  Pool(int compute_workers, int cores);
  ~Pool() override;
  void wake(Lane& lane) override;
  bool begins_early() const override { return true; }
  void end_begun(Lane& lane) override;
  bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) override;
  void nudge() override { hurry(); }
  void wake_up() noexcept override;  // a lane that is parked on others may go on

 private:
  struct Worker {
    Thread thread;
    Parker parker;
    Runner runner;
    bool active = false;    // runs lanes, counted in active_
    bool searcher = false;  // set by its waker, or by itself: it is the one that looks for work
  };
  enum class Search : std::uint32_t { kNone, kSpinning, kNapping };

  // pool.cpp: running lanes
  void work(Worker& self);
  void run(Runner& self, Lane& lane, std::uint64_t stop);
  bool turn_over(const Runner& self, const Lane& lane, unsigned ops) const;
  bool start(Runner& self, Lane& lane, PackedOp& op);
  static void use_time_slice(Runner& self, TimeSlice slice);
  void pace(Runner& self);
  void note_time(Runner& self, Lane& lane, std::uint64_t op_ticks) const;
  bool linger(Runner& self, Lane& lane);
  bool shares_host_core() const;
  void publish(Runner& self, Lane& lane);
  void wake_waiters(Runner& self, Lane& lane);
  void keep(Runner& self);
  bool park_on_point(Lane& lane, Point point);
  void make_ready(Runner& self, Lane& lane);
  bool drive(Runner& self, Lane& lane, std::uint64_t position);

  // engines.cpp: slots
  bool hold(Runner& self, Lane& lane, Engine engine);
  void let_go(Runner& self);
  bool wanted(Engine engine) const;

  // scheduling.cpp: who looks for work
  Lane* next(Worker& self);
  Lane* find(Worker& self);
  Lane* take_local(Runner& self);
  Lane* take_shared();
  Lane* take_left();
  void share(Lane& lane);
  void share_local(Runner& self);
  void wake_one();
  void wake_napper();
  void hurry();
  void start_worker();
  Lane* search(Worker& self);
  bool worth_taking() const;
  Lane* spin_for_work(Worker& self);
  Lane* nap_for_work(Worker& self);
  bool rescue_stuck();
  bool work_left() const;
  void sleep(Worker& self);
  void leave_host_core(Runner& self);
  bool expected_long(const Lane& lane, const PackedOp* op) const;

  // words.cpp: what is waited for outside lanes
  void park_on_word(Lane& lane, PackedOp& op);
  bool poll_words(Runner* self);
  bool only_told();

  const int max_workers_;
  const bool one_core_;
  const std::uint64_t move_ticks_;   // between two moves of a thread to another core
  const std::uint64_t look_ticks_;   // between two looks at an empty lane
  const std::uint64_t long_ticks_;   // an op longer than this is worth waking a thread for
  const std::uint64_t heavy_ticks_;  // and beside one longer than this others would wait too long for the core

  std::array<EngineSlots, kEngines> engines_;  // by Engine

  alignas(64) SpinLock shared_lock_;
  LaneList<&Lane::shared_next> shared_;  // guarded by shared_lock_
  alignas(64) std::atomic<int> shared_count_{0};
  std::atomic<bool> shared_urgent_{false};  // a lane in it is expected to be long
  std::atomic<int> active_{0};              // workers that run lanes
  std::atomic<Search> search_{Search::kNone};
  std::atomic<bool> stopping_{false};
  // Where a host thread was when it shared a lane last, and a worker when it took one: hints, see shares_host_core().
  std::atomic<int> host_core_{-1}, worker_core_{-1};
  std::atomic<bool> hurried_{false};    // one core only, see hurry()
  std::atomic<bool> naps_long_{false};  // the searcher sleeps longer: hosts (one core) or workers run what is queued

  SpinLock words_lock_;
  std::vector<Lane*> words_;  // lanes parked on a word, guarded by words_lock_
  std::atomic<int> words_count_{0};
  std::atomic<int> untold_count_{0};  // of them, those whose change nobody tells
  std::atomic<bool> trusts_{false};   // who naps trusts to be told

  std::mutex sleep_mutex_;  // guards what follows
  std::vector<Worker*> sleeping_;
  Worker* napping_ = nullptr;
  bool told_ = false;  // of a parked lane, since the searcher looked last
  std::vector<std::unique_ptr<Worker>> workers_;

  std::array<Runner, 16> drivers_;
  Runner host_;  // any host thread that does not wait: only says that it is no worker
};

}  // namespace slip
