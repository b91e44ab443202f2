// Section F: stream-ordered memory (rules 84-88).
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::allocator {
namespace {

constexpr std::size_t kBytes = 64 << 10;

class Allocator : public DeviceTest {
 protected:
  // The pool keeps everything, and may reuse it across streams by these ways only.
  Device pooled(bool follow, bool opportunistic, bool internal) const {
    return open([=](DeviceOptions& options) {
      options.pool = {follow, opportunistic, internal, std::size_t{1} << 30};
    });
  }
};

TEST_P(Allocator, Rule84_AddressIsKnownAtOnceAndUsableInStreamOrder) {
  const Device device = open();
  const Stream stream = device.stream();
  Buffer host = device.alloc(kBytes, MemoryKind::kPinned);
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes, "fresh");
  EXPECT_NE(memory.native(), nullptr);
  EXPECT_EQ(memory.bytes(), kBytes);
  stream.fill(memory, 3);
  stream.copy(host, memory);
  stream.free(std::move(memory));
  EXPECT_FALSE(memory);
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(all_words(host, 0x03030303));
}

TEST_P(Allocator, Rule85_AnotherStreamUsesItThroughAnEvent) {
  const Device device = open();
  const Stream stream = device.stream(), other = device.stream();
  Buffer host = device.alloc(kBytes, MemoryKind::kPinned);
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes);
  stream.fill(memory, 4);
  other.wait(stream.record());
  other.copy(host, memory);
  stream.wait(other.record());
  stream.free(std::move(memory));
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(other.query());
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(all_words(host, 0x04040404));
}

TEST_P(Allocator, Rule86_AfterTheFreeTheBufferIsGone) {
  const Device device = open();
  const Stream stream = device.stream();
  Buffer memory = stream.alloc(kBytes);
  const Range range = memory;
  stream.fill(memory, 1);
  stream.free(std::move(memory));
  EXPECT_TRUE(fails([&] { stream.fill(range, 2); }, ErrorCode::kInvalidHandle, {"freed"}));
  EXPECT_TRUE(
      fails([&] { stream.launch(store_kernel(), {.writes = {range}, .scalars = {1}}); }, ErrorCode::kInvalidHandle));
  EXPECT_TRUE(fails([&] { stream.free(std::move(memory)); }, ErrorCode::kInvalidHandle)) << "freed twice";
  EXPECT_TRUE(finished(stream));
}

TEST_P(Allocator, Rule87_SameStreamGetsFreedMemoryAtOnce) {
  const Device device = pooled(false, false, false);
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes);
  void* const address = memory.native();
  stream.free(std::move(memory));
  const Buffer again = stream.alloc(kBytes);
  EXPECT_EQ(again.native(), address);
  gate.open();
}

TEST_P(Allocator, Rule87_NoWayOpenMeansNoReuseInAnotherStream) {
  const Device device = pooled(false, false, false);
  const Stream stream = device.stream(), other = device.stream();
  Buffer memory = stream.alloc(kBytes);
  void* const address = memory.native();
  stream.free(std::move(memory));
  other.wait(stream.record());
  EXPECT_TRUE(finished(other));
  EXPECT_NE(other.alloc(kBytes).native(), address) << "ordered and complete, but both ways are shut";
}

TEST_P(Allocator, Rule87_FollowEventDependencies) {
  const Device device = pooled(true, false, false);
  const Stream stream = device.stream(), between = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes);
  void* const address = memory.native();
  const Event before = stream.record();
  stream.fill(memory, 1);
  stream.free(std::move(memory));
  other.wait(before);
  {
    const Buffer fresh = other.alloc(kBytes);
    EXPECT_NE(fresh.native(), address) << "the event does not cover the free";
    between.wait(stream.record());
    other.wait(between.record());
    const Buffer reused = other.alloc(kBytes);
    EXPECT_EQ(reused.native(), address) << "ordered after the free, through a third stream";
  }
  gate.open();
}

TEST_P(Allocator, Rule87_OpportunisticReuseNeedsTheFreeDone) {
  const Device device = pooled(false, true, false);
  const Stream stream = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes);
  void* const address = memory.native();
  stream.free(std::move(memory));
  {
    const Buffer fresh = other.alloc(kBytes);
    EXPECT_NE(fresh.native(), address) << "the free has not run";
    gate.open();
    EXPECT_TRUE(finished(stream));
    const Buffer reused = other.alloc(kBytes);
    EXPECT_EQ(reused.native(), address);
  }
}

TEST_P(Allocator, Rule87_InternalDependenciesHoldTheNewUser) {
  const Device device = pooled(false, false, true);
  Buffer host = device.alloc(kBytes, MemoryKind::kPinned);
  const Stream stream = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(stream);
  Buffer memory = stream.alloc(kBytes);
  void* const address = memory.native();
  stream.fill(memory, 1);
  stream.copy(host, memory);
  stream.free(std::move(memory));
  const Buffer reused = other.alloc(kBytes);
  if (on_cuda() && reused.native() != address) GTEST_SKIP() << "the driver took fresh memory, as it may";
  EXPECT_EQ(reused.native(), address);
  other.fill(reused, 2);  // must not run before the first user is done
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(other.query());
  gate.open();
  EXPECT_TRUE(finished(other) && finished(stream));
  EXPECT_TRUE(all_words(host, 0x01010101));
}

TEST_P(Allocator, Rule88_FreedMemoryGoesBackAtASynchronisation) {
  SLIP_NOT_ON_CUDA("the pool is the driver's: what it keeps, and in which steps, is not ours to count");
  for (const std::size_t threshold : {std::size_t{0}, kBytes}) {
    const Device device = open([=](DeviceOptions& options) { options.pool.release_threshold = threshold; });
    const Stream stream = device.stream();
    const std::size_t before = device.memory().reserved;
    {
      const Buffer one = stream.alloc(kBytes), two = stream.alloc(kBytes);
      EXPECT_EQ(device.memory().used, before + 2 * kBytes);
    }
    EXPECT_EQ(device.memory().used, before);
    EXPECT_EQ(device.memory().reserved, before + 2 * kBytes) << "kept until the next synchronisation";
    EXPECT_TRUE(finished(stream));
    EXPECT_EQ(device.memory().reserved, before + threshold);
    EXPECT_EQ(device.memory().peak, before + 2 * kBytes);
  }
}

TEST_P(Allocator, Rule88_ReusedBlocksAreCountedWithTheirWholeSize) {
  SLIP_NOT_ON_CUDA("the pool is the driver's: what it keeps, and in which steps, is not ours to count");
  const Device device = open([=](DeviceOptions& options) { options.pool.release_threshold = kBytes; });
  const Stream stream = device.stream();
  stream.free(stream.alloc(kBytes));
  Buffer smaller = stream.alloc(kBytes / 2);  // served by the larger block
  stream.free(std::move(smaller));
  EXPECT_EQ(device.memory().used, 0u);
  EXPECT_EQ(device.memory().reserved, kBytes);
  const Buffer again = stream.alloc(kBytes);
  EXPECT_EQ(device.memory().reserved, kBytes) << "the block kept its size";
}

SLIP_OVER_DEVICES(Allocator);

}  // namespace
}  // namespace slip::test::allocator
