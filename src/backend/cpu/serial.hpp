// Serial: the executor that runs one op at a time. CpuPolicy kSingle runs the ready op that was issued first. CpuPolicy
// kRandom chooses a ready op at random; the seed determines the choices. Sooner or later kRandom tries an order that
// the program does not enforce, so a missing dependency becomes a wrong result.
//
// Threads that wait for work run it themselves. If no thread waits, Serial's own thread runs it. Under kSingle it does
// so at once; under kRandom after a delay, or when a thread polls or waits with a deadline. So a program whose threads
// only wait gets the same choices in every run.
#pragma once

#include <random>
#include <vector>

#include "backend/cpu/executor.hpp"
#include "base/thread.hpp"

namespace slip::backend {

class Serial final : public Executor {
 public:
  // `lanes` is the device's list, guarded by `lanes_mutex`. It only grows.
  Serial(CpuPolicy policy, std::uint64_t seed, base::Mutex& lanes_mutex, const std::vector<Lane*>& lanes);
  ~Serial() override;
  void wake(Lane& lane) override;
  bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) override;
  // A thread waits but does not run ops itself. So Serial's thread runs them at once, without kRandom's delay.
  void hurry() override {
    const base::LockGuard lock(work_mutex_);
    hurried_ = true;
    work_changed_.notify_one();
  }

 private:
  void work();
  bool run_ready();
  void sleep(std::int64_t time_ns, bool until_hurried) SLIP_REQUIRES(work_mutex_);
  bool step() SLIP_REQUIRES(drive_);
  // Whether the op at the head can run now. Skips padding, and advances an exchange that is at the head.
  bool ready(Lane& lane);
  // The lane whose op runs next, by the policy. Null: no lane has a ready op.
  Lane* choose() SLIP_REQUIRES(drive_);

  const CpuPolicy policy_;
  base::Mutex& lanes_mutex_;
  const std::vector<Lane*>& lanes_;
  base::Mutex drive_;  // held by the thread that runs ops
  std::mt19937_64 random_ SLIP_GUARDED_BY(drive_);
  std::vector<Lane*> ready_ SLIP_GUARDED_BY(drive_);
  Lane* preferred_ SLIP_GUARDED_BY(drive_) = nullptr;  // see choose()

  base::Mutex work_mutex_;
  base::CondVar work_changed_;
  bool pending_ SLIP_GUARDED_BY(work_mutex_) = false;  // wake() was called since Serial's thread last began to run ops
  bool hurried_ SLIP_GUARDED_BY(work_mutex_) = false;  // hurry() was called: Serial's thread skips kRandom's delay
  bool stopping_ SLIP_GUARDED_BY(work_mutex_) = false;
  base::Thread thread_;
};

}  // namespace slip::backend
