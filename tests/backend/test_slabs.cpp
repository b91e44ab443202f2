// Stream states that a closed device gives back: the next device must find them as if they were new.
#include <string>
#include <vector>

#include "backend/cpu/lane.hpp"
#include "backend/sim/model.hpp"
#include "backend/support.hpp"
#include "base/slab.hpp"

namespace slip::test_slabs {
namespace {

using test::Gate;

// Streams that have run something, waited for another device and been waited for, of a device that is closed then.
void use_and_close(const std::string& name, CpuPolicy policy) {
  const Device other = Device::open(name);
  const Device device = Device::open(name, {.policy = policy, .max_connections = policy == CpuPolicy::kRandom ? 2 : 0});
  Gate gate(other);
  const Stream held = other.stream();
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(device.stream());
  gate.hold(held);
  for (const Stream& stream : streams) {
    stream.wait(held.record());
    stream.launch(test::nothing());
    held.wait(stream.record());
  }
  device.legacy_stream().launch(test::nothing());
  gate.open();
  for (const Stream& stream : streams) stream.sync();
  other.sync();
}

// As many states as the slab may have got back; they are returned to it.
template <class State, class Check>
void each_idle(const Check& check) {
  std::vector<State*> states;
  for (int i = 0; i < 16; ++i) states.push_back(base::Slab<State>::take());
  for (State* state : states) check(*state);
  for (State* state : states) base::Slab<State>::give(state);
}

TEST(Slabs, ALaneComesBackAsNew) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    use_and_close("cpu", policy);
    each_idle<backend::Lane>([&](const backend::Lane& lane) {
      SCOPED_TRACE("policy " + std::to_string(int(policy)));
      EXPECT_EQ(lane.state.load(), backend::LaneState::kRunning)
          << "a thread that waits could claim it while it is idle";
      EXPECT_TRUE(lane.idle.load());
      EXPECT_EQ(lane.leaving.load(), 0);
      EXPECT_EQ(lane.id.load(), 0u);
      EXPECT_EQ(lane.core, nullptr);
      EXPECT_EQ(lane.executor.load(), nullptr);
      EXPECT_EQ(lane.queue, nullptr);
      EXPECT_EQ(lane.waiters, nullptr);
      EXPECT_FALSE(lane.has_waiters.load());
      EXPECT_EQ(lane.parked_on.load(), nullptr);
      EXPECT_EQ(lane.waiter.lane, nullptr);
      EXPECT_EQ(lane.next, nullptr);
      EXPECT_EQ(lane.shared_next, nullptr);
      EXPECT_FALSE(lane.enqueued || lane.left_to_host || lane.queue_parked || lane.dispatched || lane.subscribed);
      EXPECT_FALSE(lane.has_pending.load());
      EXPECT_FALSE(lane.joins_legacy);
      EXPECT_EQ(lane.granted, Engine::kNone);
      EXPECT_EQ(lane.op_ticks.load(), ~0ull);
      EXPECT_EQ(lane.checks, 0);
      EXPECT_EQ(lane.syncs_seen, lane.syncs.load());
      EXPECT_EQ(lane.syncs_shared, lane.syncs.load());
      EXPECT_EQ(lane.head, lane.tail);
      EXPECT_EQ(lane.done.load(), lane.tail);
      EXPECT_EQ(lane.published.load(), lane.tail);
    });
  }
}

TEST(Slabs, ASimulatedStreamComesBackAsNew) {
  use_and_close("sim:h200", CpuPolicy::kConcurrent);
  each_idle<sim::SimStream>([](const sim::SimStream& stream) {
    EXPECT_EQ(stream.id.load(), 0u);
    EXPECT_EQ(stream.core, nullptr);
    EXPECT_EQ(stream.machine.load(), nullptr);
    EXPECT_EQ(stream.device, nullptr);
    EXPECT_EQ(stream.at, nullptr);
    EXPECT_EQ(stream.stage, sim::Stage::kIdle);
    EXPECT_EQ(stream.timer.place, sim::Timer::kIdle);
    EXPECT_FALSE(stream.runnable || stream.barred || stream.held || stream.foreign_reached || stream.closing);
    EXPECT_EQ(stream.waiting_on, nullptr);
    EXPECT_EQ(stream.first_waiter, nullptr);
    EXPECT_EQ(stream.last_waiter, nullptr);
    EXPECT_TRUE(stream.commands.empty());
    EXPECT_EQ(stream.done.load(), stream.commands.tail());
  });
}

}  // namespace
}  // namespace slip::test_slabs
