// Strict mode: what an op touches must be what it declared.
#include "backend/support.hpp"

namespace slip::test_strict {
namespace {

using test::Bodies;
using test::Gate;

constexpr std::size_t kPage = 64 << 10;  // as large as any page, so that buffers share none

struct Strict : testing::Test {
  Device device = Device::open("cpu", {.strict = true});
  Buffer a = device.alloc(kPage, MemoryKind::kDevice, "a");
  Buffer b = device.alloc(kPage, MemoryKind::kDevice, "b");
  Buffer pinned = device.alloc(kPage, MemoryKind::kPinned);
  Stream stream = device.stream();

  int* at(const Buffer& buffer) { return static_cast<int*>(buffer.native()); }
  int first_of(const Buffer& buffer) {
    device.copy(pinned, buffer);
    return pinned.host_read<int>()[0];
  }
};

// Writes, reads at an address that is not among its ranges.
const Kernel kPoke{"poke", [](const Args& args) { *args.scalar<volatile int*>(0) = args.scalar<int>(1); }, nullptr};
const Kernel kPeek{"peek", [](const Args& args) { static_cast<void>(*args.scalar<volatile int*>(0)); }, nullptr};

TEST_F(Strict, DeclaredAccessesAreFine) {
  stream.launch(test::put(), {.writes = {a}, .scalars = {5}});
  stream.launch(kPeek, {.reads = {a}, .scalars = {at(a)}});
  stream.launch(kPoke, {.reads = {b}, .writes = {a}, .scalars = {at(a), 6}});
  EXPECT_NO_THROW(stream.sync());
  EXPECT_EQ(first_of(a), 6);
}

TEST_F(Strict, AnUndeclaredWriteIsAnError) {
  stream.launch(kPoke, {.writes = {a}, .scalars = {at(b), 1}});
  const std::string text = test::text_of([&] { stream.sync(); });
  EXPECT_TRUE(test::contains(text, "undeclared access")) << text;
  EXPECT_TRUE(test::contains(text, "'poke'")) << text;
  EXPECT_TRUE(test::contains(text, "byte 0 of the device allocation")) << text;
  EXPECT_TRUE(test::contains(text, "test_strict.cpp")) << text;
}

TEST_F(Strict, AnUndeclaredReadIsAnError) {
  stream.launch(kPeek, {.writes = {a}, .scalars = {at(b)}});
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kUndeclaredAccess);
}

TEST_F(Strict, AWriteToWhatIsOnlyReadIsAnError) {
  stream.launch(kPoke, {.reads = {a}, .scalars = {at(a), 1}});
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kUndeclaredAccess);
}

TEST_F(Strict, AWriteThatWasForbiddenDidNotHappen) {
  stream.launch(test::put(), {.writes = {b}, .scalars = {77}});
  stream.launch(kPoke, {.writes = {a}, .scalars = {at(b), 1}});
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kUndeclaredAccess);
  EXPECT_EQ(first_of(b), 77);
}

TEST_F(Strict, AnOpaqueKernelMayTouchEverything) {
  stream.launch(kPoke, {.scalars = {at(b), 3}});
  EXPECT_NO_THROW(stream.sync());
  EXPECT_EQ(first_of(b), 3);
  stream.launch(kPeek, {.writes = {a}, .scalars = {at(b)}});
  EXPECT_EQ(test::code_of([&] { stream.sync(); }), ErrorCode::kUndeclaredAccess) << "and is locked again afterwards";
}

TEST_F(Strict, ANullPointerIsAnErrorNotACrash) {
  stream.launch(kPoke, {.writes = {a}, .scalars = {reinterpret_cast<int*>(16), 1}});
  const std::string text = test::text_of([&] { stream.sync(); });
  EXPECT_TRUE(test::contains(text, "not device memory")) << text;
}

TEST_F(Strict, AnExceptionInsideAKernelIsStillItsOwn) {
  Bodies bodies;
  bodies.launch(stream, [] { throw std::runtime_error("plain"); });
  const std::string text = test::text_of([&] { stream.sync(); });
  EXPECT_TRUE(test::contains(text, "launch failed")) << text;
  EXPECT_TRUE(test::contains(text, "plain")) << text;
  const Stream next = device.stream();
  next.launch(kPoke, {.writes = {a}, .scalars = {at(b), 1}});
  EXPECT_EQ(test::code_of([&] { next.sync(); }), ErrorCode::kUndeclaredAccess) << "the guard works after an exception";
}

TEST_F(Strict, OneStreamsMistakeLeavesTheOthers) {
  for (int round = 0; round < 5; ++round) {
    const Stream wrong = device.stream();
    wrong.launch(kPoke, {.writes = {a}, .scalars = {at(b), 1}});
    EXPECT_EQ(test::code_of([&] { wrong.sync(); }), ErrorCode::kUndeclaredAccess);
    stream.launch(test::put(), {.writes = {a}, .scalars = {round}});
    EXPECT_NO_THROW(stream.sync());
  }
  EXPECT_EQ(first_of(a), 4);
}

TEST_F(Strict, CopiesFillsAndPoolMemoryWork) {
  stream.fill(a, 0x11);
  stream.copy(b, a);
  Buffer pooled = stream.alloc(1000);
  stream.copy(pooled.slice(0, 500), b.slice(100, 500));
  stream.copy(pinned.slice(0, 500), pooled.slice(0, 500));
  stream.free(std::move(pooled));
  EXPECT_NO_THROW(stream.sync());
  EXPECT_EQ(pinned.host_read<unsigned char>()[499], 0x11);
}

// A stream that waits for a flag in device memory reads it between ops, when all memory is protected.
TEST_F(Strict, AWordInDeviceMemoryCanBeWaitedFor) {
  const Stream writer = device.stream(StreamFlags::kNonBlocking);
  const Stream waiter = device.stream(StreamFlags::kNonBlocking);
  device.fill(a, 0);
  device.sync();
  waiter.wait_value(a.slice(0, 4), 9);
  waiter.launch(test::put(), {.writes = {b}, .scalars = {4}});
  EXPECT_FALSE(waiter.sync_for(std::chrono::milliseconds(2)));
  writer.write_value(a.slice(0, 4), 9);
  EXPECT_TRUE(test::finishes(waiter));
  EXPECT_EQ(first_of(b), 4);
}

TEST_F(Strict, RunsOneOpAtATime) {
  EXPECT_EQ(device.options().policy, CpuPolicy::kSingle);
  const Device random = Device::open("cpu", {.policy = CpuPolicy::kRandom, .strict = true});
  EXPECT_EQ(random.options().policy, CpuPolicy::kRandom);
}

TEST_F(Strict, AnotherDeviceCopiesItsMemory) {
  const Device other = Device::open("cpu");
  Buffer far = other.alloc(kPage);
  const Stream there = other.stream();
  stream.launch(test::put(), {.writes = {a}, .scalars = {41}});
  there.wait(stream.record());
  there.copy(far, a);
  there.copy(b, far);
  EXPECT_TRUE(test::finishes(there));
  EXPECT_EQ(first_of(b), 41);
}

TEST_F(Strict, TwoStrictDevicesKeepToThemselves) {
  const Device other = Device::open("cpu", {.strict = true});
  Buffer far = other.alloc(kPage);
  const Stream there = other.stream();
  for (int i = 0; i < 20; ++i) {
    stream.launch(test::put(), {.writes = {a}, .scalars = {i}});
    there.launch(test::put(), {.writes = {far}, .scalars = {i}});
  }
  EXPECT_TRUE(test::finishes(stream) && test::finishes(there));
  there.launch(kPoke, {.writes = {far}, .scalars = {at(a), 1}});
  EXPECT_EQ(test::code_of([&] { there.sync(); }), ErrorCode::kUndeclaredAccess);
}

}  // namespace
}  // namespace slip::test_strict
