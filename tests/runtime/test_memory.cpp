// Device memory: counting, limits, wrong requests.
#include <algorithm>
#include <limits>
#include <vector>

#include "backend/support.hpp"
#include "slip/observer.hpp"

namespace slip::test_memory {
namespace {

using test::Gate;

constexpr std::size_t kHuge = std::numeric_limits<std::size_t>::max();

TEST(Memory, CountsWhatIsAllocatedAndItsPeak) {
  const Device device = Device::open("cpu", {.memory_limit = 1 << 20});
  EXPECT_EQ(device.memory().total, std::size_t{1} << 20);
  EXPECT_EQ(device.memory().used, 0U);
  {
    const Buffer a = device.alloc(100'000);
    const Buffer b = device.alloc(50'000);
    EXPECT_EQ(device.memory().used, 150'000U);
    EXPECT_EQ(device.memory().reserved, 150'000U);
    EXPECT_EQ(device.memory().peak, 150'000U);
    const Buffer pinned = device.alloc(70'000, MemoryKind::kPinned);
    const Buffer pageable = device.alloc(70'000, MemoryKind::kPageable);
    EXPECT_EQ(device.memory().used, 150'000U) << "only the device's own memory counts";
  }
  EXPECT_EQ(device.memory().used, 0U);
  EXPECT_EQ(device.memory().reserved, 0U);
  EXPECT_EQ(device.memory().peak, 150'000U);
  device.reset_peak_memory();
  EXPECT_EQ(device.memory().peak, 0U);
}

TEST(Memory, TheLimitIsKeptAndTheErrorHasTheNumbers) {
  const Device device = Device::open("cpu", {.memory_limit = 10'000});
  const Buffer first = device.alloc(6'000);
  const std::string text =
      test::text_of([&] { static_cast<void>(device.alloc(5'000, MemoryKind::kDevice, "weights")); });
  EXPECT_TRUE(test::contains(text, "out of memory")) << text;
  EXPECT_TRUE(test::contains(text, "5000")) << text;
  EXPECT_TRUE(test::contains(text, "'weights'")) << text;
  EXPECT_TRUE(test::contains(text, "6000 of 10000")) << text;
  EXPECT_TRUE(test::contains(text, "4000 free")) << text;
  EXPECT_EQ(device.memory().used, 6'000U) << "a failed request leaves no trace";
  const Buffer second = device.alloc(4'000);
  EXPECT_EQ(device.memory().used, 10'000U);
}

TEST(Memory, ErrorsUseTheNameOfTheDevice) {
  const Device device = Device::open("cpu", {.memory_limit = 1 << 20, .name = "decoder"});
  EXPECT_EQ(device.info().name, "cpu");
  EXPECT_EQ(device.info().label, "decoder");
  const std::string text = test::text_of([&] { static_cast<void>(device.alloc(2 << 20)); });
  EXPECT_TRUE(test::contains(text, "'decoder'")) << text;
}

TEST(Memory, TheLimitHoldsForThePool) {
  const Device device = Device::open("cpu", {.memory_limit = 8'192});
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  Buffer first = stream.alloc(5'000);
  const std::string text = test::text_of([&] { static_cast<void>(stream.alloc(5'000)); });
  EXPECT_TRUE(test::contains(text, "asked for 5000")) << text;
  EXPECT_TRUE(test::contains(text, "5120 of 8192 reserved")) << text;
  EXPECT_EQ(test::code_of([&] { static_cast<void>(device.alloc(5'000)); }), ErrorCode::kOutOfMemory);
  stream.free(std::move(first));
  const Stream other = device.stream(StreamFlags::kNonBlocking);
  gate.open();
  EXPECT_TRUE(test::finishes(stream));
  const Buffer again = other.alloc(5'000);
  EXPECT_EQ(device.memory().used, 5'120U);
}

TEST(Memory, OrdinaryAllocationTakesWhatThePoolKeeps) {
  const Device device = Device::open("cpu", {.memory_limit = 8'192, .pool = {.release_threshold = kHuge}});
  const Stream stream = device.stream();
  stream.free(stream.alloc(8'192));
  stream.sync();
  EXPECT_EQ(device.memory().reserved, 8'192U) << "kept, under the threshold";
  const Buffer all = device.alloc(8'000);
  EXPECT_EQ(device.memory().reserved, 8'000U);
}

TEST(Memory, ImpossibleSizesAreRefused) {
  for (const bool strict : {false, true}) {
    const Device device = Device::open("cpu", {.strict = strict});
    const Stream stream = device.stream();
    for (const std::size_t bytes : {kHuge, kHuge - 1, kHuge - 511, kHuge - 4'096, kHuge / 2 + 1}) {
      for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned, MemoryKind::kPageable})
        EXPECT_EQ(test::code_of([&] { static_cast<void>(device.alloc(bytes, kind)); }), ErrorCode::kOutOfMemory)
            << bytes;
      EXPECT_EQ(test::code_of([&] { static_cast<void>(stream.alloc(bytes)); }), ErrorCode::kOutOfMemory) << bytes;
    }
    EXPECT_EQ(test::code_of([&] { static_cast<void>(device.alloc(0)); }), ErrorCode::kInvalidValue);
    EXPECT_EQ(test::code_of([&] { static_cast<void>(stream.alloc(0)); }), ErrorCode::kInvalidValue);
    EXPECT_EQ(device.memory().used, 0U);
    EXPECT_EQ(device.memory().reserved, 0U);
  }
}

TEST(Memory, WrapRefusesNothing) {
  const Device device = Device::open("cpu");
  char data[16];
  EXPECT_EQ(test::code_of([&] { static_cast<void>(device.wrap(nullptr, 16)); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(device.wrap(data, 0)); }), ErrorCode::kInvalidValue);
  const Buffer wrapped = device.wrap(data, sizeof(data), MemoryKind::kPinned, "mine");
  EXPECT_EQ(wrapped.native(), data);
  EXPECT_EQ(wrapped.kind(), MemoryKind::kPinned);
  EXPECT_EQ(wrapped.name(), Name("mine"));
}

TEST(Memory, FreeingWaitsForTheWorkThatUsesIt) {
  std::atomic<bool> ran{false};
  test::Bodies bodies;
  const Device device = Device::open("cpu");
  const Stream stream = device.stream(StreamFlags::kNonBlocking);
  {
    Buffer memory = device.alloc(1 << 16);
    for (int i = 0; i < 100; ++i) stream.launch(test::put(), {.writes = {memory}, .scalars = {i}});
    bodies.launch(stream, [&] { ran.store(true); });
  }
  EXPECT_TRUE(ran.load());
}

TEST(Memory, ARangeOfAFreedBufferIsRefused) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream();
  Range stale;
  {
    const Buffer gone = device.alloc(64, MemoryKind::kDevice, "gone");
    stale = gone;
  }
  const Buffer next = device.alloc(64);  // likely the same description
  EXPECT_EQ(test::code_of([&] { stream.fill(stale, 0); }), ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { stream.copy(next, stale); }), ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { stream.launch(test::nothing(), {.reads = {stale}}); }), ErrorCode::kInvalidHandle);
  EXPECT_TRUE(test::finishes(stream));
}

TEST(Memory, SlicesStayInside) {
  const Device device = Device::open("cpu");
  const Buffer buffer = device.alloc(100);
  EXPECT_EQ(buffer.slice(100, 0).bytes, 0U);
  EXPECT_EQ(buffer.slice(10, 20).slice(5, 15).offset, 15U);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(buffer.slice(90, 11)); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(buffer.slice(101, 0)); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(buffer.slice(1, kHuge)); }), ErrorCode::kInvalidValue);
  Range forged = buffer;
  forged.bytes = 101;
  EXPECT_EQ(test::code_of([&] { device.stream().fill(forged, 1); }), ErrorCode::kInvalidValue);
  forged.offset = kHuge;
  EXPECT_EQ(test::code_of([&] { device.stream().fill(forged, 1); }), ErrorCode::kInvalidValue);
}

TEST(Memory, MovedFromBuffersAreEmpty) {
  const Device device = Device::open("cpu");
  Buffer first = device.alloc(64);
  Buffer second = std::move(first);
  EXPECT_FALSE(static_cast<bool>(first));
  EXPECT_EQ(first.bytes(), 0U);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(first.kind()); }), ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(first.native()); }), ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { device.fill(first, 1); }), ErrorCode::kInvalidHandle);
  first = std::move(second);
  EXPECT_EQ(first.bytes(), 64U);
}

TEST(Memory, TheHostCannotTouchDeviceMemory) {
  const Device device = Device::open("cpu");
  Buffer memory = device.alloc(64, MemoryKind::kDevice, "far");
  const std::string text = test::text_of([&] { static_cast<void>(memory.host_read<int>()); });
  EXPECT_TRUE(test::contains(text, "'far'")) << text;
  EXPECT_EQ(test::code_of([&] { static_cast<void>(memory.host_write<int>()); }), ErrorCode::kInvalidValue);
}

TEST(Memory, StagedUploadsAreGivenBack) {
  const Device device = Device::open("cpu", {.pageable = PageableCopy::kStage});
  const Stream stream = device.stream();
  Buffer memory = device.alloc(4096);
  Buffer source = device.alloc(4096, MemoryKind::kPageable);
  Buffer result = device.alloc(4096, MemoryKind::kPinned);
  Gate gate(device);
  gate.hold(stream);
  for (int round = 1; round <= 100; ++round) {
    for (int& value : source.host_write<int>()) value = round;
    stream.copy(memory, source);  // returns while the gate is closed: the source is free again
  }
  gate.open();
  stream.copy(result, memory);
  ASSERT_TRUE(test::finishes(stream));
  EXPECT_EQ(result.host_read<int>()[1023], 100);
}

TEST(HostViews, MayCoverARangeOfTheBuffer) {
  const Device device = Device::open("cpu");
  Buffer memory = device.alloc(64, MemoryKind::kPinned, "words");
  std::ranges::fill(memory.host_write<std::uint32_t>(), 1u);
  {
    const HostView<std::uint32_t> part = memory.host_write<std::uint32_t>(8, 12);
    EXPECT_EQ(part.size(), 3u);
    std::ranges::fill(part, 7u);
  }
  const HostView<const std::uint32_t> all = memory.host_read<std::uint32_t>();
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], i >= 2 && i < 5 ? 7u : 1u) << i;
  EXPECT_EQ(memory.host_read<std::uint32_t>(16, 4)[0], 7u);
  EXPECT_EQ(memory.host_read<std::uint32_t>(64, 0).size(), 0u);
  const auto refused = [&](std::size_t offset, std::size_t bytes) {
    return test::text_of([&] { static_cast<void>(memory.host_read<std::uint32_t>(offset, bytes)); });
  };
  EXPECT_TRUE(test::contains(refused(60, 8), "60 to 68")) << refused(60, 8);
  EXPECT_TRUE(test::contains(refused(8, ~std::size_t{0}), "'words'")) << refused(8, ~std::size_t{0});
  EXPECT_TRUE(test::contains(refused(2, 4), "aligned to 4 bytes")) << refused(2, 4);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(Buffer().host_read<char>(0, 1)); }), ErrorCode::kInvalidHandle);
}

// Only these bytes are reported to the checker: a stream may use the others meanwhile.
TEST(HostViews, NotifyObserversOfTheirRangeOnly) {
  struct Ranges : Observer {
    void on(const Record& record) override {
      if (record.kind == RecordKind::kHostRead || record.kind == RecordKind::kHostEnd) seen.push_back(record.range);
    }
    std::vector<Range> seen;
  } observer;
  const Device device = Device::open("cpu");
  const Buffer memory = device.alloc(64, MemoryKind::kPinned);
  attach_observer(observer);
  static_cast<void>(memory.host_read<char>(24, 8));
  detach_observer(observer);
  ASSERT_EQ(observer.seen.size(), 2u);
  for (const Range& range : observer.seen) {
    EXPECT_EQ(range.offset, 24u);
    EXPECT_EQ(range.bytes, 8u);
  }
}

}  // namespace
}  // namespace slip::test_memory
