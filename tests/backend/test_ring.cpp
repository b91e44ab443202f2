// The ring of a lane: ops of many sizes, wrap-around, the bound that holds the host.
#include <numeric>
#include <thread>
#include <vector>

#include "backend/support.hpp"
#include "support/test_alarm.hpp"

namespace slip::test_ring {
namespace {

using test::Gate;

[[maybe_unused]] const bool kWatched = test::TestAlarm::install();

struct Seen {
  std::atomic<std::uint64_t> launches{0};
  std::atomic<std::uint64_t> wrong{0};
};

// scalar(0): where to report; scalar(1), (2): how many reads and writes; the others count up from 100.
const Kernel kCheck{"check",
                    [](const Args& args) {
                      Seen& seen = *args.scalar<Seen*>(0);
                      const auto reads = args.scalar<std::size_t>(1);
                      const auto writes = args.scalar<std::size_t>(2);
                      const auto scalars = args.scalar<std::size_t>(3);
                      bool good = args.reads() == reads && args.writes() == writes;
                      for (std::size_t i = 0; good && i < reads; ++i) good = args.in<std::byte>(i).size() == i + 1;
                      for (std::size_t i = 0; good && i < writes; ++i)
                        good = args.out<std::byte>(i).size() == 2 * i + 1;
                      for (std::size_t i = 0; good && i < scalars; ++i)
                        good = args.scalar<std::size_t>(4 + i) == 100 + i;
                      if (!good) seen.wrong.fetch_add(1);
                      seen.launches.fetch_add(1);
                    },
                    nullptr};

class Launcher {
 public:
  Launcher(const Device& device, Seen& seen) : buffer_(device.alloc(4096)), seen_(seen) {}

  void launch(StreamRef stream, std::size_t reads, std::size_t writes, std::size_t scalars) {
    std::vector<Range> read;
    std::vector<Range> written;
    std::vector<Scalar> values{&seen_, reads, writes, scalars};
    for (std::size_t i = 0; i < reads; ++i) read.push_back(buffer_.slice(i, i + 1));
    for (std::size_t i = 0; i < writes; ++i) written.push_back(buffer_.slice(i, 2 * i + 1));
    for (std::size_t i = 0; i < scalars; ++i) values.emplace_back(100 + i);
    stream.launch(kCheck, {.reads = read, .writes = written, .scalars = values});
  }

 private:
  Buffer buffer_;
  Seen& seen_;
};

TEST(Ring, OpsOfManySizesWrapAround) {
  for (const std::size_t depth : {64, 256, 4096}) {
    Seen seen;
    const Device device = Device::open("cpu", {.queue_depth = depth});
    Launcher launcher(device, seen);
    const Stream stream = device.stream();
    std::uint64_t launched = 0;
    for (int round = 0; round < test::rounds(40); ++round) {
      for (std::size_t size = 0; size <= 40; ++size) {
        launcher.launch(stream, size, (size * 7 + static_cast<std::size_t>(round)) % 11, (size * 5) % 23);
        ++launched;
      }
    }
    ASSERT_TRUE(test::finishes(stream)) << "depth " << depth;
    EXPECT_EQ(seen.launches.load(), launched);
    EXPECT_EQ(seen.wrong.load(), 0U);
  }
}

TEST(Ring, SizesWrapAroundUnderEveryPolicy) {
  for (const CpuPolicy policy : {CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    Seen seen;
    const Device device = Device::open("cpu", {.policy = policy, .queue_depth = 64});
    Launcher launcher(device, seen);
    const Stream one = device.stream();
    const Stream two = device.stream();
    for (std::size_t i = 0; i < 400; ++i) launcher.launch(i % 3 == 0 ? one : two, i % 41, i % 5, i % 9);
    ASSERT_TRUE(test::finishes(one) && test::finishes(two));
    EXPECT_EQ(seen.launches.load(), 400U);
    EXPECT_EQ(seen.wrong.load(), 0U);
  }
}

TEST(Ring, AnOpLargerThanTheQueueIsRefusedAndTheStreamGoesOn) {
  Seen seen;
  const Device device = Device::open("cpu", {.queue_depth = 16});
  Launcher launcher(device, seen);
  const Stream stream = device.stream();
  const std::string text = test::text_of([&] { launcher.launch(stream, 40, 0, 0); });
  EXPECT_TRUE(test::contains(text, "queue_depth")) << text;
  EXPECT_TRUE(test::contains(text, "1024 bytes")) << "the queue's size: " << text;
  EXPECT_EQ(test::code_of([&] { launcher.launch(stream, 40, 0, 0); }), ErrorCode::kInvalidValue);
  launcher.launch(stream, 3, 1, 2);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(seen.launches.load(), 1U);
}

TEST(Ring, TheLegacyStreamRefusesTooLargeOpsAsWell) {
  Seen seen;
  const Device device = Device::open("cpu", {.queue_depth = 16});
  Launcher launcher(device, seen);
  EXPECT_EQ(test::code_of([&] { launcher.launch(device.legacy_stream(), 40, 0, 0); }), ErrorCode::kInvalidValue);
  launcher.launch(device.legacy_stream(), 1, 0, 0);
  const Stream stream = device.stream();
  launcher.launch(stream, 1, 0, 0);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(seen.launches.load(), 2U);
}

TEST(Ring, TheLargestOpThatFitsRunsEvenWhenTheQueueIsFull) {
  Seen seen;
  const Device device = Device::open("cpu", {.queue_depth = 16});
  Launcher launcher(device, seen);
  const Stream stream = device.stream();
  Gate gate(device);
  std::size_t largest = 0;
  while (test::code_of([&] { launcher.launch(stream, largest + 1, 0, 0); }) == ErrorCode::kOk) ++largest;
  EXPECT_GE(largest, 12U);
  ASSERT_TRUE(test::finishes(stream));
  seen.launches.store(0);
  for (int i = 0; i < test::rounds(500); ++i) launcher.launch(stream, largest, 0, 0);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(seen.launches.load(), static_cast<std::uint64_t>(test::rounds(500)));
  EXPECT_EQ(seen.wrong.load(), 0U);
}

TEST(Ring, MoreRangesThanAnOpCanCountAreRefused) {
  const Device device = Device::open("cpu", {.queue_depth = std::size_t{1} << 19});
  const Buffer buffer = device.alloc(64);
  const Stream stream = device.stream();
  std::atomic<std::size_t> seen{0};
  static const Kernel kCount{
      "count", [](const Args& args) { args.scalar<std::atomic<std::size_t>*>(0)->store(args.reads()); }, nullptr};
  const auto launch = [&](std::size_t ranges) {
    const std::vector<Range> reads(ranges, buffer.range());
    stream.launch(kCount, {.reads = reads, .scalars = {&seen}});
    EXPECT_TRUE(test::finishes(stream));
  };
  launch(60'000);
  EXPECT_EQ(seen.load(), 60'000U);
  EXPECT_EQ(test::code_of([&] { launch(65'536 + 7); }), ErrorCode::kInvalidValue) << "not cut down to 7";
  EXPECT_EQ(seen.load(), 60'000U);
}

// Another thread can submit between `least` and `most` empty launches to a blocked stream, and the rest after it opens.
void expect_held_between(std::uint64_t min, std::uint64_t max, const DeviceOptions& options) {
  const Device device = Device::open("cpu", options);
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  Gate gate(device);
  gate.hold(stream);
  std::atomic<std::uint64_t> launched{0};
  const std::uint64_t wanted = 3 * max;
  std::thread host([&] {
    for (std::uint64_t i = 0; i < wanted; ++i) {
      stream.launch(test::nothing());
      launched.fetch_add(1);
    }
  });
  EXPECT_TRUE(test::eventually([&] { return launched.load() >= min; })) << "held at " << launched.load();
  // It must not get further at any timing; so let it run many times.
  test::yield_times(5'000);
  EXPECT_LE(launched.load(), max);
  gate.open();
  host.join();
  EXPECT_EQ(launched.load(), wanted) << "opening the gate lets the host go on";
  EXPECT_TRUE(test::finishes(stream));
}

TEST(Bound, AFullQueueHoldsTheHost) { expect_held_between(100, 128, {.queue_depth = 128}); }

TEST(Bound, QueueDepthSetsIt) {
  expect_held_between(6, 16, {.queue_depth = 16});
  expect_held_between(1'000, 1'024, {.queue_depth = 1'024});
}

TEST(Bound, TheDefaultIs4096) { expect_held_between(4'000, 4'096, {}); }

TEST(Bound, HoldsUnderEveryPolicy) {
  for (const CpuPolicy policy : {CpuPolicy::kSingle, CpuPolicy::kRandom})
    expect_held_between(40, 64, {.policy = policy, .queue_depth = 64});
}

// A legacy op waits for each blocking stream, more waits than its queue can take at once.
TEST(Bound, ALegacyOpBehindMoreStreamsThanItsQueueHolds) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    const Device device = Device::open("cpu", {.policy = policy, .queue_depth = 16});
    Buffer cell = device.alloc(sizeof(int) * 64);
    Buffer result = device.alloc(sizeof(int) * 64, MemoryKind::kPinned);
    std::vector<Stream> streams;
    for (int i = 0; i < 64; ++i) streams.push_back(device.stream());
    for (int round = 1; round <= 3; ++round) {
      for (std::size_t i = 0; i < streams.size(); ++i) {
        streams[i].launch(test::nothing());
        streams[i].launch(test::put(), {.writes = {cell.slice(4 * i, 4)}, .scalars = {round * static_cast<int>(i)}});
      }
      device.legacy_stream().copy(result, cell);
      ASSERT_TRUE(test::finishes(device.legacy_stream()));
      const auto view = result.host_read<int>();
      for (int i = 0; i < 64; ++i) ASSERT_EQ(view[static_cast<std::size_t>(i)], round * i) << "policy " << int(policy);
    }
  }
}

}  // namespace
}  // namespace slip::test_ring
