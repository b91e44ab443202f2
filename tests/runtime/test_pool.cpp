// Stream-ordered memory: which stream may reuse memory that another one freed (rules 84-88), each condition alone.
#include <vector>

#include "backend/support.hpp"

namespace slip::test_pool {
namespace {

using test::Gate;

constexpr std::size_t kBytes = 64 << 10;
constexpr PoolOptions kNothing{
    .follow_event_dependencies = false, .opportunistic = false, .internal_dependencies = false};

// A device whose first stream is held, with memory freed in it but the free not reached.
struct Freed {
  explicit Freed(const PoolOptions& options, CpuPolicy policy = CpuPolicy::kConcurrent)
      : device(Device::open("cpu", {.policy = policy, .pool = options})) {
    gate.hold(first);
    Buffer memory = first.alloc(kBytes);
    address = memory.native();
    first.free(std::move(memory));
  }
  Device device;
  Gate gate{device};
  Stream first = device.stream(StreamFlags::kNonBlocking);
  Stream second = device.stream(StreamFlags::kNonBlocking);
  void* address = nullptr;
};

TEST(Pool, TheSameStreamGetsItBackAtOnce) {
  Freed freed(kNothing);
  const Buffer again = freed.first.alloc(kBytes);
  EXPECT_EQ(again.native(), freed.address);
}

TEST(Pool, AnotherStreamGetsItByNoneOfTheWays) {
  Freed freed(kNothing);
  const Buffer other = freed.second.alloc(kBytes);
  EXPECT_NE(other.native(), freed.address);
  freed.second.launch(test::put(), {.writes = {other}, .scalars = {1}});
  EXPECT_TRUE(test::finishes(freed.second)) << "and nothing holds it";
}

TEST(Pool, FollowsEventDependencies) {
  PoolOptions options = kNothing;
  options.follow_event_dependencies = true;
  Freed freed(options);
  const Buffer before = freed.second.alloc(kBytes);
  EXPECT_NE(before.native(), freed.address) << "no dependency yet";
  freed.second.wait(freed.first.record());
  const Buffer after = freed.second.alloc(kBytes);
  EXPECT_EQ(after.native(), freed.address);
}

TEST(Pool, FollowsEventDependenciesThroughAThirdStream) {
  PoolOptions options = kNothing;
  options.follow_event_dependencies = true;
  Freed freed(options);
  const Stream middle = freed.device.stream(StreamFlags::kNonBlocking);
  middle.wait(freed.first.record());
  freed.second.wait(middle.record());
  const Buffer memory = freed.second.alloc(kBytes);
  EXPECT_EQ(memory.native(), freed.address);
}

TEST(Pool, AnEventFromBeforeTheFreeIsNoDependency) {
  PoolOptions options = kNothing;
  options.follow_event_dependencies = true;
  const Device device = Device::open("cpu", {.pool = options});
  Gate gate(device);
  const Stream first = device.stream(StreamFlags::kNonBlocking);
  const Stream second = device.stream(StreamFlags::kNonBlocking);
  gate.hold(first);
  Buffer memory = first.alloc(kBytes);
  void* const address = memory.native();
  const Event early = first.record();
  first.launch(test::put(), {.writes = {memory}, .scalars = {1}});
  first.free(std::move(memory));
  second.wait(early);
  const Buffer other = second.alloc(kBytes);
  EXPECT_NE(other.native(), address);
}

TEST(Pool, OpportunisticTakesWhatIsAlreadyFree) {
  PoolOptions options = kNothing;
  options.opportunistic = true;
  options.release_threshold = ~std::size_t{0};
  Freed freed(options);
  const Buffer early = freed.second.alloc(kBytes);
  EXPECT_NE(early.native(), freed.address) << "the free is pending";
  freed.gate.open();
  ASSERT_TRUE(test::finishes(freed.first));
  const Buffer late = freed.second.alloc(kBytes);
  EXPECT_EQ(late.native(), freed.address);
}

TEST(Pool, InternalDependenciesAddAWait) {
  PoolOptions options = kNothing;
  options.internal_dependencies = true;
  Freed freed(options);
  const Buffer memory = freed.second.alloc(kBytes);
  EXPECT_EQ(memory.native(), freed.address);
  freed.second.launch(test::put(), {.writes = {memory}, .scalars = {1}});
  EXPECT_FALSE(freed.second.sync_for(std::chrono::milliseconds(5))) << "it waits for the free";
  freed.gate.open();
  EXPECT_TRUE(test::finishes(freed.second));
}

TEST(Pool, PrefersABlockThatNeedsNoWait) {
  const Device device = Device::open("cpu", {.pool = {.release_threshold = ~std::size_t{0}}});
  Gate gate(device);
  const Stream held = device.stream(StreamFlags::kNonBlocking);
  const Stream quick = device.stream(StreamFlags::kNonBlocking);
  gate.hold(held);
  Buffer pending = held.alloc(kBytes);
  Buffer ready = quick.alloc(kBytes);
  void* const address = ready.native();
  held.free(std::move(pending));
  quick.free(std::move(ready));
  quick.sync();
  const Stream third = device.stream(StreamFlags::kNonBlocking);
  const Buffer memory = third.alloc(kBytes);
  EXPECT_EQ(memory.native(), address);
  EXPECT_TRUE(test::finishes(third));
}

TEST(Pool, GivesBackAtASynchronisation) {
  for (const CpuPolicy policy : {CpuPolicy::kConcurrent, CpuPolicy::kSingle, CpuPolicy::kRandom}) {
    const Device device = Device::open("cpu", {.policy = policy});
    const Stream stream = device.stream();
    stream.free(stream.alloc(kBytes));
    EXPECT_EQ(device.memory().used, 0U);
    EXPECT_EQ(device.memory().reserved, kBytes);
    stream.sync();
    EXPECT_EQ(device.memory().reserved, 0U) << "the threshold is 0";
    EXPECT_EQ(device.memory().peak, kBytes);
  }
}

TEST(Pool, KeepsUpToTheThreshold) {
  const Device device = Device::open("cpu", {.pool = {.release_threshold = kBytes}});
  const Stream stream = device.stream();
  std::vector<Buffer> buffers;
  for (int i = 0; i < 4; ++i) buffers.push_back(stream.alloc(kBytes));
  EXPECT_EQ(device.memory().reserved, 4 * kBytes);
  for (Buffer& buffer : buffers) stream.free(std::move(buffer));
  stream.sync();
  EXPECT_EQ(device.memory().reserved, kBytes);
}

TEST(Pool, DoesNotGiveBackWhatIsStillInUse) {
  Freed freed({});
  EXPECT_TRUE(test::finishes(freed.second));
  EXPECT_EQ(freed.device.memory().reserved, kBytes) << "the free is behind the gate";
  freed.gate.open();
  EXPECT_TRUE(test::finishes(freed.first));
  EXPECT_EQ(freed.device.memory().reserved, 0U);
}

// A block may serve a smaller request; the books must still balance when it comes back.
TEST(Pool, ReuseByASmallerRequestKeepsTheCount) {
  for (const bool strict : {false, true}) {
    const Device device = Device::open("cpu", {.strict = strict});
    const Stream stream = device.stream();
    for (int round = 0; round < 10; ++round) {
      stream.free(stream.alloc(100'000));
      Buffer smaller = stream.alloc(60'000);
      EXPECT_GE(device.memory().used, 60'000U);
      stream.fill(smaller, 1);
      stream.free(std::move(smaller));
      EXPECT_EQ(device.memory().used, 0U);
    }
    stream.sync();
    EXPECT_EQ(device.memory().reserved, 0U);
  }
}

TEST(Pool, ALargeBlockIsNotWastedOnASmallRequest) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  Buffer large = stream.alloc(1 << 20);
  void* const address = large.native();
  stream.free(std::move(large));
  const Buffer small = stream.alloc(512);
  EXPECT_NE(small.native(), address);
}

TEST(Pool, ABufferThatGoesOutOfScopeIsFreedInItsStream) {
  const Device device = Device::open("cpu");
  Gate gate(device);
  const Stream stream = device.stream();
  gate.hold(stream);
  {
    const Buffer memory = stream.alloc(kBytes);
    stream.launch(test::put(), {.writes = {memory}, .scalars = {1}});
  }  // does not wait: the gate is closed
  EXPECT_EQ(device.memory().used, 0U);
  EXPECT_FALSE(stream.query());
  gate.open();
  EXPECT_TRUE(test::finishes(stream));
}

TEST(Pool, ABufferMayOutliveItsStream) {
  const Device device = Device::open("cpu");
  Buffer memory;
  {
    const Stream stream = device.stream();
    memory = stream.alloc(kBytes);
    stream.fill(memory, 7);
  }
  const Stream other = device.stream();
  device.sync();
  other.fill(memory, 8);
  other.free(std::move(memory));
  other.sync();
  EXPECT_EQ(device.memory().reserved, 0U);
  {
    const Stream stream = device.stream();
    memory = stream.alloc(kBytes);
  }
  memory = Buffer();
  EXPECT_EQ(device.memory().used, 0U);
}

TEST(Pool, FreeOfWhatIsNotItsOwnIsRefused) {
  const std::vector<Device> devices = Device::open_all("cpu", 2);
  const Stream stream = devices[0].stream();
  const Stream foreign = devices[1].stream();
  Buffer ordinary = devices[0].alloc(64);
  EXPECT_EQ(test::code_of([&] { stream.free(std::move(ordinary)); }), ErrorCode::kInvalidValue);
  EXPECT_TRUE(static_cast<bool>(ordinary)) << "a refused buffer stays with its owner";
  Buffer pooled = stream.alloc(64);
  EXPECT_EQ(test::code_of([&] { foreign.free(std::move(pooled)); }), ErrorCode::kInvalidHandle);
  EXPECT_TRUE(static_cast<bool>(pooled));
  EXPECT_EQ(test::code_of([&] { stream.free(Buffer()); }), ErrorCode::kInvalidHandle);
  stream.free(std::move(pooled));
}

TEST(Pool, APoisonedStreamLeaksNothing) {
  test::Bodies bodies;
  const Device device = Device::open("cpu");
  {
    const Stream stream = device.stream();
    const Buffer memory = stream.alloc(kBytes);
    bodies.launch(stream, [] { throw std::runtime_error("broken"); });
    EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kLaunchFailed);
    EXPECT_EQ(test::code_of([&] { static_cast<void>(stream.alloc(kBytes)); }), ErrorCode::kLaunchFailed);
  }
  device.sync();
  EXPECT_EQ(device.memory().used, 0U);
  EXPECT_EQ(device.memory().reserved, 0U);
}

}  // namespace
}  // namespace slip::test_pool
