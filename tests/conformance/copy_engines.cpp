// Section C: the copy engines (rules 46-50). Durations are exact in virtual time.
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test {
namespace {

constexpr std::size_t kMillisecond = 1'000'000;  // bytes that the ideal device copies in 1 ms

class CopyEngines : public DeviceTest {
 protected:
  // Buffers for one copy, of the ideal device.
  struct Pair {
    Pair(const Device& device, std::size_t ms)
        : memory(device.alloc(ms * kMillisecond)), pinned(device.alloc(ms * kMillisecond, MemoryKind::kPinned)) {}
    void in(StreamRef stream) const { stream.copy(memory, pinned); }
    void out(StreamRef stream) const { stream.copy(pinned, memory); }
    Buffer memory, pinned;
  };
};

// The virtual time of an event since `begin`, in ms.
double ms(const TimedEvent& event, const TimedEvent& begin) {
  return std::chrono::duration<double, std::milli>(event - begin).count();
}

TEST_P(CopyEngines, Rule46_OneCopyADirectionAtATime) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const Stream a = device.stream(), b = device.stream();
  const Pair first(device, 2), second(device, 3);
  const TimedEvent begin = a.record_timed();
  first.in(a);
  second.in(b);
  const TimedEvent first_end = a.record_timed(), second_end = b.record_timed();
  device.sync();
  EXPECT_EQ(ms(first_end, begin), 2);
  EXPECT_EQ(ms(second_end, begin), 5);
}

TEST_P(CopyEngines, Rule47_DirectionsAndKernelsOverlap) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream in = device.stream(), out = device.stream(), compute = device.stream();
    const Pair up(device, 4), down(device, 4);
    EXPECT_EQ(duration(device, [&] { up.in(in), down.out(out), busy(compute, 4); }), 4 * kMs);
    return;
  }
  SLIP_NEEDS_CONCURRENCY();
  const Device device = open();
  const Stream in = device.stream(), out = device.stream(), compute = device.stream();
  const Pair up(device, 1), down(device, 1);
  Meeting meeting(3);  // the kernel ends only when both copies, issued after it, have run
  meeting.launch(compute);
  up.in(in);
  in.host([&] { meeting.arrive(); });
  down.out(out);
  out.host([&] { meeting.arrive(); });
  EXPECT_TRUE(finished(compute) && finished(in) && finished(out));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(CopyEngines, Rule48_CopyEnginesAreBlindToPriority) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const Stream low1 = device.stream(), low2 = device.stream();
  const Stream high = device.stream(StreamFlags::kBlocking, device.info().greatest_priority);
  ASSERT_LT(high.priority(), low1.priority());
  const Pair first(device, 4), second(device, 4), urgent(device, 1);
  const TimedEvent begin = low1.record_timed();
  first.in(low1);
  second.in(low2);
  urgent.in(high);
  const TimedEvent end = high.record_timed();
  device.sync();
  EXPECT_EQ(ms(end, begin), 9);
}

TEST_P(CopyEngines, Rule49_CopiesAreServedByReadinessNotByIssue) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream late = device.stream(), ready = device.stream();
    const Pair first(device, 2), second(device, 2);
    const TimedEvent begin = ready.record_timed();
    busy(late, 10);
    first.in(late);
    second.in(ready);
    const TimedEvent end = ready.record_timed(), last = late.record_timed();
    device.sync();
    EXPECT_EQ(ms(end, begin), 2);
    EXPECT_EQ(ms(last, begin), 12);
    return;
  }
  const Device device = open();
  const Stream late = device.stream(), ready = device.stream();
  const Pair first(device, 1), second(device, 1);
  Gate gate(device);
  gate.hold(late);
  first.in(late);
  second.in(ready);
  EXPECT_TRUE(finished(ready));
}

TEST_P(CopyEngines, Rule50_ChunksLetSmallCopiesIn) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const Stream big = device.stream(), small = device.stream();
  const Pair whole(device, 8), part(device, 1);
  const auto small_after = [&](std::size_t chunks) {
    device.sync();
    const TimedEvent begin = big.record_timed();
    const std::size_t bytes = whole.memory.bytes() / chunks;
    for (std::size_t i = 0; i < chunks; ++i)
      big.copy(whole.memory.slice(i * bytes, bytes), whole.pinned.slice(i * bytes, bytes));
    part.in(small);
    const TimedEvent end = small.record_timed();
    device.sync();
    return ms(end, begin);
  };
  EXPECT_EQ(small_after(1), 9);
  EXPECT_EQ(small_after(8), 2);
}

SLIP_OVER_DEVICES(CopyEngines);

}  // namespace
}  // namespace slip::test
