// Section C: the copy engines (rules 46-50). Durations are exact in virtual time.
#include <functional>

#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::copy_engines {
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

// The end of a copy of 1 ms in another stream, behind 8 ms of copies in chunks in one stream.
double small_copy_ends(const Device& device, int priority, std::size_t chunks,
                       const std::function<void(StreamRef)>& between) {
  const Buffer memory = device.alloc(8 * kMillisecond), pinned = device.alloc(8 * kMillisecond, MemoryKind::kPinned);
  const Buffer part = device.alloc(kMillisecond), source = device.alloc(kMillisecond, MemoryKind::kPinned);
  const Stream big = device.stream(), small = device.stream(StreamFlags::kBlocking, priority);
  const TimedEvent begin = big.record_timed();
  const std::size_t bytes = memory.bytes() / chunks;
  for (std::size_t i = 0; i < chunks; ++i) {
    big.copy(memory.slice(i * bytes, bytes), pinned.slice(i * bytes, bytes));
    if (between) between(big);
  }
  small.copy(part, source);
  const TimedEvent end = small.record_timed();
  device.sync();
  return ms(end, begin);
}

TEST_P(CopyEngines, Rule48_CopyEnginesAreBlindToPriority) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const int high = device.info().max_priority;
  ASSERT_LT(high, 0);
  for (const int priority : {0, high}) {
    const Stream low1 = device.stream(), low2 = device.stream();
    const Stream urgent = device.stream(StreamFlags::kBlocking, priority);
    const Pair first(device, 4), second(device, 4), small(device, 1);
    const TimedEvent begin = low1.record_timed();
    first.in(low1);
    second.in(low2);
    small.in(urgent);
    const TimedEvent end = urgent.record_timed();
    device.sync();
    EXPECT_EQ(ms(end, begin), 9) << "priority " << priority;
    EXPECT_EQ(small_copy_ends(device, priority, 8, {}), 9) << "priority " << priority;
    EXPECT_EQ(small_copy_ends(device, priority, 8, [](StreamRef stream) { busy(stream, 1); }), 2)
        << "priority " << priority;
  }
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

// Measured on an H200: the copy engine continues with the stream that it serves while that stream's next copy is ready,
// with a record or a wait that is over in between. Work on another engine in between lets other streams in.
TEST_P(CopyEngines, Rule50_CopiesBackToBackKeepTheEngine) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const Stream other = device.stream();
  const Event done = other.record();
  done.sync();
  EXPECT_EQ(small_copy_ends(device, 0, 1, {}), 9);
  EXPECT_EQ(small_copy_ends(device, 0, 8, {}), 9);
  EXPECT_EQ(small_copy_ends(device, 0, 8, [](StreamRef stream) { static_cast<void>(stream.record_timed()); }), 9);
  EXPECT_EQ(small_copy_ends(device, 0, 8, [&](StreamRef stream) { stream.wait(done); }), 9);
}

TEST_P(CopyEngines, Rule50_ChunksWithOtherWorkBetweenThemLetSmallCopiesIn) {
  if (!simulated()) GTEST_SKIP() << "an engine model: exact in virtual time only";
  const Device device = open_ideal();
  const Pair down(device, 1);
  EXPECT_EQ(small_copy_ends(device, 0, 8, [](StreamRef stream) { busy(stream, 1); }), 2);
  EXPECT_EQ(small_copy_ends(device, 0, 8, [](StreamRef stream) { stream.host([] {}); }), 2);
  EXPECT_EQ(small_copy_ends(device, 0, 8, [&](StreamRef stream) { down.out(stream); }), 2);
}

SLIP_OVER_DEVICES(CopyEngines);

}  // namespace
}  // namespace slip::test::copy_engines
