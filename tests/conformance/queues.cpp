// Section G: hardware queues (rules 92-95), and the bound of a stream's own queue.
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::queues {
namespace {

using std::chrono::milliseconds;

class Queues : public DeviceTest {
 protected:
  // On a GPU with what the tests set for the whole process, which is enough.
  Device with_queues(int count) const {
    if (on_cuda()) return open();
    return open([count](DeviceOptions& options) { options.max_connections = count; });
  }
};

TEST_P(Queues, Rule92_NumberOfQueuesIsAnOptionFixedAtOpening) {
  SLIP_NOT_ON_CUDA("the number of queues of a GPU is fixed for the process, before CUDA starts");
  for (const int count : {1, 8, 32}) EXPECT_EQ(with_queues(count).info().queues, count);
  for (const int count : {-1, 33})
    EXPECT_TRUE(
        fails([&] { static_cast<void>(with_queues(count)); }, ErrorCode::kInvalidValue, {std::to_string(count)}));
  EXPECT_EQ(with_queues(0).info().queues, simulated() ? 8 : 0) << "unlimited on cpu, as described on sim";
}

TEST_P(Queues, Rule93_AnUnresolvedOpHoldsBackItsWholeQueue) {
  SLIP_NOT_ON_CUDA("the number of queues of a GPU is fixed for the process, before CUDA starts");
  const Device device = with_queues(1);
  const Trail trail(device);
  const Stream first = device.stream(StreamFlags::kNonBlocking), second = device.stream(StreamFlags::kNonBlocking);
  Stream others[] = {device.stream(StreamFlags::kNonBlocking), device.stream(StreamFlags::kNonBlocking)};
  Gate gate(device);
  gate.hold(first);
  second.wait(first.record());
  trail.leave(second, 1);
  for (const Stream& other : others) busy(other, 0);
  for (int i = 0; i < 5; ++i) {
    for (const Stream& other : others) EXPECT_FALSE(other.query()) << "a false dependency is missing";
  }
  gate.open();
  for (const Stream& other : others) EXPECT_TRUE(finished(other));
  EXPECT_TRUE(trail.is({1}));
}

TEST_P(Queues, Rule93_WithQueuesEnoughNothingIsHeldBack) {
  const Device device = with_queues(16);
  const Stream first = device.stream(), second = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(first);
  second.wait(first.record());
  busy(second, 0);
  busy(other, 0);
  EXPECT_TRUE(finished(other));
  EXPECT_FALSE(second.query());
}

TEST_P(Queues, Rule94_ReadyKernelsOfOneQueueOverlap) {
  if (simulated()) {
    const Device device = open_ideal({.max_connections = 1});
    const Stream a = device.stream(), b = device.stream();
    EXPECT_EQ(duration(device, [&] { busy(a, 10, 0.5), busy(b, 10, 0.5); }), 10 * kMs);
    return;
  }
  SLIP_NEEDS_CONCURRENCY();
  SLIP_NOT_ON_CUDA("the number of queues of a GPU is fixed for the process, before CUDA starts");
  const Device device = with_queues(1);
  const Stream a = device.stream(), b = device.stream();
  Meeting meeting(2);
  meeting.launch(a);
  meeting.launch(b);
  EXPECT_TRUE(finished(a) && finished(b));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(Queues, Rule95_OneQueueSerialisesWhatMoreQueuesLetOverlap) {
  if (!simulated()) GTEST_SKIP() << "durations are exact in virtual time only";
  const auto third_ends = [](int queues) {
    const Device device = open_ideal({.max_connections = queues});
    const Stream a = device.stream(), b = device.stream();
    const TimedEvent begin = b.record_timed();
    busy(a, 10, 0.5);
    busy(a, 10, 0.5);
    busy(b, 10, 0.5);
    const TimedEvent end = b.record_timed();
    device.sync();
    return end - begin;
  };
  EXPECT_EQ(third_ends(8), milliseconds(10));
  EXPECT_EQ(third_ends(1), milliseconds(20))
      << "behind the second kernel of the other stream, which waits for the first";
}

TEST_P(Queues, AFullQueueHoldsTheHostAndNothingIsLost) {
  SLIP_NOT_ON_CUDA("the driver decides how deep the queue of a stream is");
  const Device device = open([](DeviceOptions& options) { options.queue_depth = 16; });
  Buffer word = device.alloc(4, MemoryKind::kPinned);
  set_words(word, 0);
  const Stream stream = device.stream();
  std::uint32_t expected = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) expected = mixed(expected, i);
  Gate gate(device);
  gate.hold(stream);
  HostCall fill([&] {
    for (std::uint32_t i = 0; i < 1000; ++i) stream.launch(mix_kernel(), {.writes = {word}, .scalars = {i}});
  });
  EXPECT_TRUE(fill.holds(device));
  gate.open();
  EXPECT_TRUE(fill.ends());
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(all_words(word, expected));
}

TEST_P(Queues, ALegacyOpOverMoreStreamsThanItsQueueHolds) {
  const Device device = open([](DeviceOptions& options) { options.queue_depth = 16; });
  const Trail trail(device);
  std::vector<Stream> streams;
  for (int i = 0; i < 24; ++i) streams.push_back(device.stream());
  Gate gate(device);
  gate.hold(streams.back());
  for (const Stream& stream : streams) busy(stream, 0);
  trail.leave(streams.back(), 1);
  HostCall legacy([&] {  // may have to wait for room
    trail.leave(device.legacy_stream(), 2);
    for (const Stream& stream : streams) busy(stream, 0);
    trail.leave(device.legacy_stream(), 3);
  });
  EXPECT_TRUE(progressed(device));
  gate.open();
  EXPECT_TRUE(legacy.ends());
  EXPECT_TRUE(trail.is({1, 2, 3}));
}

SLIP_OVER_DEVICES(Queues);

}  // namespace
}  // namespace slip::test::queues
