// Section F: host functions and priorities (rules 77-83).
#include "slip/trace.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::host_functions {
namespace {

class HostFunctions : public DeviceTest {};

TEST_P(HostFunctions, Rule77_HostFunctionStandsInItsStream) {
  const Device device = open();
  Buffer word = device.alloc(4, MemoryKind::kPinned);
  set_words(word, 0);
  auto* const value = static_cast<std::uint32_t*>(word.native());
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  stream.launch(mix_kernel(), {.writes = {word}, .scalars = {1}});
  stream.host([value] { *value = mixed(*value, 2); });
  stream.launch(mix_kernel(), {.writes = {word}, .scalars = {3}});
  EXPECT_TRUE(progressed(device));
  EXPECT_TRUE(peek_words(word, 0));
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(all_words(word, mixed(mixed(mixed(0, 1), 2), 3)));
}

TEST_P(HostFunctions, WhatItCostsIsInTheTrace) {
  const Device device = open();
  const Stream stream = device.stream();
  Trace trace;
  stream.host([] {}, {.name = "read"}, {.bytes = 4096, .time = 1'234'567});
  EXPECT_TRUE(finished(stream));
  trace.stop();
  const TraceData data = trace.data();
  int found = 0;
  for (const TraceSpan& span : data.spans()) {
    if (span.name != "read") continue;
    ++found;
    ASSERT_TRUE(span.submit);
    EXPECT_EQ(span.submit->cost.time, 1'234'567);
    EXPECT_EQ(span.submit->cost.bytes, 4096u);
    EXPECT_TRUE(!simulated() || span.ended - span.started == 1'234'567);
  }
  EXPECT_EQ(found, 1);
}

TEST_P(HostFunctions, Rule77_LaterWorkWaitsForTheHostFunction) {
  SLIP_NEEDS_CONCURRENCY();
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  Meeting meeting(2);
  stream.host([&] { meeting.meet(); });
  trail.leave(stream, 1);
  EXPECT_TRUE(progressed(device));
  EXPECT_FALSE(stream.query());
  meeting.arrive();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(meeting.complete());
}

TEST_P(HostFunctions, Rule78_HostFunctionsMayNotCallTheRuntime) {
  const Device device = open();
  const Buffer memory = device.alloc(64);
  const Stream stream = device.stream(), other = device.stream();
  const Event event = other.record();
  const std::function<void()> calls[] = {
      [&] { other.fill(memory, 1); },
      [&] { busy(other, 0); },
      [&] { static_cast<void>(other.query()); },
      [&] { device.sync(); },
      [&] { event.sync(); },
      [&] { static_cast<void>(device.alloc(64)); },
      [&] { static_cast<void>(other.record()); },
      [&] { other.wait(event); },
      [&] { static_cast<void>(device.stream()); },
      [&] { static_cast<void>(device.per_thread_stream()); },
      [&] { static_cast<void>(open()); },
      [&] { static_cast<void>(Device::open("cpu")); },
  };
  for (const auto& call : calls) {
    ErrorCode code = ErrorCode::kOk;
    stream.host([&] {
      try {
        call();
      } catch (const Error& error) {
        code = error.code();
      }
    });
    ASSERT_TRUE(finished(stream));
    EXPECT_EQ(code, ErrorCode::kNotPermitted) << &call - calls;
  }
}

TEST_P(HostFunctions, Rule79_HostFunctionsRunOneAtATime) {
  if (simulated()) {
    const Device device = open_ideal();  // a host function takes 1 ms there
    const Stream a = device.stream(), b = device.stream();
    EXPECT_EQ(duration(device, [&] { a.host([] {}), b.host([] {}); }), 2 * kMs);
  }
  const Device device = open();
  const Stream a = device.stream(), b = device.stream(), c = device.stream();
  std::atomic<int> running{0}, max{0}, ran{0};
  for (int i = 0; i < 60; ++i) {
    const StreamRef stream = i % 3 == 0 ? StreamRef(a) : i % 3 == 1 ? StreamRef(b) : StreamRef(c);
    stream.host([&] {
      const int now = ++running;
      if (now > max) max = now;
      ++ran;
      --running;
    });
  }
  device.sync();
  EXPECT_EQ(ran, 60);
  EXPECT_EQ(max, 1);
}

TEST_P(HostFunctions, Rule80_HostFunctionSeesEverythingJoinedIntoItsStream) {
  const Device device = open();
  Buffer words = device.alloc(4096, MemoryKind::kPinned);
  set_words(words, 0);
  const Stream stream = device.stream(), other = device.stream(StreamFlags::kNonBlocking);
  bool seen = false;
  Gate gate(device);
  gate.hold(other);
  other.launch(store_kernel(), {.writes = {words}, .scalars = {5}});
  stream.wait(other.record());
  stream.host([&] { seen = static_cast<const std::uint32_t*>(words.native())[1023] == 5; });
  EXPECT_TRUE(progressed(device));
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(seen);
}

TEST_P(HostFunctions, Rule81_AfterAFailureHostFunctionsAreNotCalled) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream(), other = device.stream();
  std::atomic<int> called{0};
  Gate gate(device);
  gate.hold(stream);
  stream.host([&] { ++called; });
  stream.launch(fail_kernel());
  stream.host([&] { called += 100; });
  gate.open();
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed));
  EXPECT_EQ(called, 1);
  other.host([&] { ++called; });
  EXPECT_TRUE(finished(other)) << "other streams go on";
  EXPECT_EQ(called, 2);
}

TEST_P(HostFunctions, Rule81_AfterADeviceFaultHostFunctionsAreNotCalled) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream(), other = device.stream();
  std::atomic<int> called{0};
  Gate gate(device);
  gate.hold(stream);
  stream.launch(fault_kernel());
  other.wait(stream.record());
  other.host([&] { ++called; });
  gate.open();
  EXPECT_TRUE(fails([&] { other.sync(); }, ErrorCode::kDeviceFault));
  EXPECT_EQ(called, 0);
}

TEST_P(HostFunctions, Rule82_PrioritiesAreClampedToTheRange) {
  const Device device = open();
  const int least = device.info().min_priority, greatest = device.info().max_priority;
  ASSERT_LT(greatest, least) << "lower numbers are more urgent";
  EXPECT_EQ(device.stream().priority(), 0);
  EXPECT_EQ(device.stream(StreamFlags::kBlocking, greatest).priority(), greatest);
  EXPECT_EQ(device.stream(StreamFlags::kBlocking, greatest - 100).priority(), greatest);
  EXPECT_EQ(device.stream(StreamFlags::kNonBlocking, least + 100).priority(), least);
}

TEST_P(HostFunctions, Rule83_PriorityDoesNotInterruptAndGivesNoOrder) {
  if (simulated()) {
    const Device device = open_ideal();
    const Stream low = device.stream(), low2 = device.stream();
    const Stream high = device.stream(StreamFlags::kBlocking, device.info().max_priority);
    const TimedEvent begin = low.record_timed();
    busy(low, 10);
    busy(low2, 10);
    busy(high, 1);
    const TimedEvent high_end = high.record_timed(), low_end = low.record_timed(), low2_end = low2.record_timed();
    device.sync();
    using std::chrono::milliseconds;
    // All three are ready at the same instant, so the highest priority runs first; a running op is never interrupted.
    EXPECT_EQ(high_end - begin, milliseconds(1));
    EXPECT_EQ(low_end - begin, milliseconds(11));
    EXPECT_EQ(low2_end - begin, milliseconds(21));
    const TimedEvent again = low.record_timed();
    busy(low, 10);
    busy(low, 10);
    device.stream().sync();
    static_cast<void>(low.sync_for(std::chrono::nanoseconds(1)));
    const TimedEvent end = low.record_timed();
    device.sync();
    EXPECT_EQ(end - again, milliseconds(20));
  }
  const Device device = open();
  const Stream low = device.stream();
  const Stream high = device.stream(StreamFlags::kBlocking, device.info().max_priority);
  Gate gate(device);
  gate.hold(high);
  busy(high, 0);
  busy(low, 0);
  EXPECT_TRUE(finished(low)) << "held by a stream of higher priority that is not ready";
}

SLIP_OVER_DEVICES(HostFunctions);

// Takes a while, so that work which does not wait for it would be seen.
void dawdle() {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(200);
  while (std::chrono::steady_clock::now() < until) {}
}

TEST_P(HostFunctions, Rule3_LegacyWorkWaitsForHostFunctionsOfBlockingStreams) {
  const Device device = open();
  const Stream stream = device.stream();
  Buffer word = device.alloc(4, MemoryKind::kPinned), target = device.alloc(4);
  auto* value = static_cast<std::uint32_t*>(word.native());
  for (std::uint32_t i = 1; i <= 20; ++i) {
    stream.host([value, i] {
      dawdle();
      *value = i;
    });
    device.legacy_stream().copy(target, word);
    EXPECT_EQ(words_of(device, target).front(), i);
  }
}

TEST_P(HostFunctions, Rule3_BlockingStreamsWaitForHostFunctionsOfTheLegacyStream) {
  const Device device = open();
  const Stream stream = device.stream();
  Buffer word = device.alloc(4, MemoryKind::kPinned), target = device.alloc(4);
  auto* value = static_cast<std::uint32_t*>(word.native());
  for (std::uint32_t i = 1; i <= 20; ++i) {
    device.legacy_stream().host([value, i] {
      dawdle();
      *value = i;
    });
    stream.copy(target, word);
    EXPECT_EQ(words_of(device, target).front(), i);
  }
}

TEST_P(HostFunctions, Rule3_HostFunctionsOfTheLegacyStreamWaitForBlockingStreams) {
  constexpr std::size_t kBytes = 16 << 20;
  const Device device = open();
  const Stream stream = device.stream();
  Buffer pinned = device.alloc(kBytes, MemoryKind::kPinned), source = device.alloc(kBytes);
  const auto* last = static_cast<const volatile std::uint32_t*>(pinned.native()) + kBytes / 4 - 1;
  for (std::uint32_t i = 1; i <= 5; ++i) {
    stream.launch(store_kernel(), {.writes = {source}, .scalars = {i}});
    stream.copy(pinned, source);
    std::uint32_t seen = 0;
    device.legacy_stream().host([&seen, last] { seen = *last; });
    device.sync();
    EXPECT_EQ(seen, i);
  }
}

}  // namespace
}  // namespace slip::test::host_functions
