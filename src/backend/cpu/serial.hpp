// Serial: runs one op at a time. Policy single takes the op issued first among the ready ones; policy random takes any,
// from a seed, so that an order which the program does not enforce is tried sooner or later and a missing edge shows.
//
// Work is done by whoever waits; a thread of its own takes over when nobody does: at once under policy single, and
// under policy random after a while or when somebody asks, so that a program which only waits gets the same choices in
// every run.
#pragma once

#include <condition_variable>
#include <mutex>
#include <random>
#include <vector>

#include "backend/cpu/executor.hpp"
#include "base/thread.hpp"

namespace slip {

class Serial final : public Executor {
 public:
  // `lanes` is the device's list, guarded by `lanes_mutex`; it only grows.
  Serial(Policy policy, std::uint64_t seed, std::mutex& lanes_mutex, const std::vector<Lane*>& lanes);
  ~Serial() override;
  void wake(Lane& lane) override;
  bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) override;
  void nudge() override { hurry(); }

 private:
  void work();
  void hurry();
  bool step();
  bool ready(Lane& lane);
  Lane* choose();

  const Policy policy_;
  std::mutex& lanes_mutex_;
  const std::vector<Lane*>& lanes_;
  std::mutex drive_;  // held by who runs ops; guards the random state
  std::mt19937_64 random_;
  std::vector<Lane*> ready_;
  Lane* favourite_ = nullptr;

  std::mutex work_mutex_;  // guards what follows
  std::condition_variable work_changed_;
  bool pending_ = false;
  bool hurried_ = false;
  bool stopping_ = false;
  Thread thread_;
};

}  // namespace slip
