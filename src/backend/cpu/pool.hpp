// Pool: the executor that runs lanes concurrently. Each of its threads can run any op. An engine has a number of slots:
// several for compute, one for each copy direction, one for host functions. A thread must hold a slot of an engine
// while it runs an op of that engine.
//
// How lanes are assigned to threads:
// - A thread that runs a lane continues with it as long as the lane has ready ops. Lanes that its ops make ready go
//   into its local queue and run there next, so chains across streams stay on one core.
// - Before a thread starts an op that it expects to be long, it shares its local queue with the other threads. The
//   expected time is the mean time of the lane's latest ops; an unknown time counts as long. The size of a copy decides
//   whether it is long.
// - A host thread that waits for a lane is a driver: it runs that lane, and the lanes it depends on, itself. On one
//   core, if a host thread waits after each submission to a lane, the worker leaves the lane to it for a while.
// - LaneScheduler decides which worker takes the other lanes, and which workers sleep.
#pragma once

#include <array>

#include "backend/cpu/executor.hpp"
#include "backend/cpu/lane_scheduler.hpp"

namespace slip::backend {

class Pool final : public Executor {
 public:
  Pool(int compute_workers, int cores);
  void wake(Lane& lane) override;
  bool begins_early() const override { return true; }
  void end_begun(Lane& lane) override;
  bool wait(Lane& lane, std::uint64_t position, std::int64_t deadline_ns) override;
  void hurry() override { scheduler_.hurry(); }

 private:
  void work(Worker& self);
  void run(LaneRunner& self, Lane& lane, std::uint64_t stop);
  bool should_yield(const LaneRunner& self, const Lane& lane, unsigned ops) const;
  bool start(LaneRunner& self, Lane& lane, PackedOp& op);
  void pace(LaneRunner& self);
  void note_time(LaneRunner& self, Lane& lane, std::uint64_t op_ticks) const;
  bool linger(LaneRunner& self, Lane& lane);
  void publish(LaneRunner& self, Lane& lane);
  void wake_waiters(LaneRunner& self, Lane& lane);
  bool park_on_point(Lane& lane, StreamPoint point);
  bool drive(LaneRunner& self, Lane& lane, std::uint64_t position);
  LaneRunner* take_driver();

  const PoolLimits limits_;
  std::array<LaneRunner, 16> drivers_;  // for host threads that wait
  LaneRunner host_;  // for host threads that do not wait: shared by them, so only its constant is_worker is read
  LaneScheduler scheduler_;  // last: its destructor waits for the threads that use the other members
};

}  // namespace slip::backend
