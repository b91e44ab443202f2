// Section F: errors of threads, streams and devices (rules 89-91), and how failures travel.
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::failures {
namespace {

class Failures : public DeviceTest {};

TEST_P(Failures, Rule89_LastErrorIsKeptPerThread) {
  const Device device = open();
  static_cast<void>(last_error());
  EXPECT_TRUE(fails([&] { static_cast<void>(device.alloc(0)); }, ErrorCode::kInvalidValue));
  EXPECT_EQ(peek_last_error(), ErrorCode::kInvalidValue);
  HostCall other([] { EXPECT_EQ(peek_last_error(), ErrorCode::kOk); });
  EXPECT_TRUE(other.ends());
  EXPECT_EQ(peek_last_error(), ErrorCode::kInvalidValue) << "peeking does not clear";
  EXPECT_EQ(last_error(), ErrorCode::kInvalidValue);
  EXPECT_EQ(last_error(), ErrorCode::kOk) << "asking does";
}

TEST_P(Failures, Rule90_ADeviceFaultStaysForEver) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open(), healthy = open();
  const Buffer memory = device.alloc(64);
  const Stream stream = device.stream(), other = device.stream();
  const Event before = other.record();
  stream.launch(fault_kernel(), {.name = "wild"});
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kDeviceFault, {"wild", "0xdead", "failures.cpp"}));
  static_cast<void>(last_error());  // does not help
  const std::function<void()> calls[] = {
      [&] { busy(other, 0); },
      [&] { other.fill(memory, 1); },
      [&] { other.sync(); },
      [&] { device.sync(); },
      [&] { static_cast<void>(other.query()); },
      [&] { static_cast<void>(device.alloc(64)); },
      [&] { static_cast<void>(device.stream()); },
      [&] { before.sync(); },
      [&] { static_cast<void>(other.record()); },
      [&] { other.host([] {}); },
      [&] { static_cast<void>(other.alloc(64)); },
  };
  for (const auto& call : calls) EXPECT_TRUE(fails(call, ErrorCode::kDeviceFault, {"wild"})) << &call - calls;
  EXPECT_TRUE(finished(healthy.stream())) << "another device is another device";
}

TEST_P(Failures, Rule91_ABadArgumentPoisonsNothing) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream();
  const Buffer small = device.alloc(8), large = device.alloc(16);
  EXPECT_TRUE(fails([&] { stream.copy(large, small); }, ErrorCode::kInvalidValue));
  EXPECT_TRUE(
      fails([&] { stream.launch(store_kernel(), {}, {.width = 2.0}); }, ErrorCode::kInvalidValue, {"store", "2"}));
  trail.leave(stream, 1);
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(trail.is({1}));
}

TEST_P(Failures, Rule91_AFailedStreamLeavesOthersAlone) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(stream);
  stream.launch(fail_kernel(), {.name = "broken"});
  trail.leave(stream, 9);  // skipped
  gate.open();
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed, {"broken"}));
  trail.leave(other, 1);
  EXPECT_TRUE(finished(other));
  HostCall check([&] {
    const Stream reader = device.stream();
    const Buffer host = device.alloc(4, MemoryKind::kPinned);
    reader.copy(host, trail.range());
    reader.sync();
    EXPECT_TRUE(all_words(host, mixed(0, 1)));
  });
  EXPECT_TRUE(check.ends());
}

// Our choice where CUDA has none (a failed launch there loses the context): a stream that waits for lost work fails,
// too.
TEST_P(Failures, AFailureTravelsAlongEventWaits) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream(), waiting = device.stream(), early = device.stream();
  const Trail trail(device);
  Gate gate(device);
  gate.hold(stream);
  const Event good = stream.record();
  stream.launch(fail_kernel(), {.name = "broken"});
  waiting.wait(stream.record());
  early.wait(good);
  trail.leave(early, 1);
  gate.open();
  EXPECT_TRUE(finished(early)) << "waited for a point before the failure";
  EXPECT_TRUE(fails([&] { waiting.sync(); }, ErrorCode::kLaunchFailed, {"broken"}));
  EXPECT_NO_THROW(good.sync());
}

// The legacy stream's barrier orders but does not poison: the blocking streams share no data through it by themselves.
TEST_P(Failures, AFailureDoesNotTravelThroughTheLegacyBarrier) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream(), after = device.stream();
  Gate gate(device);
  gate.hold(stream);
  stream.launch(fail_kernel());
  busy(device.legacy_stream(), 0);
  busy(after, 0);
  gate.open();
  EXPECT_TRUE(finished(after));
  EXPECT_TRUE(finished(device.legacy_stream()));
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed));
}

TEST_P(Failures, ANewStreamInPlaceOfAFailedOneWorks) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  {
    const Stream stream = device.stream();
    stream.launch(fail_kernel());
    EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed));
    EXPECT_TRUE(fails([&] { device.sync(); }, ErrorCode::kLaunchFailed));
  }
  EXPECT_NO_THROW(device.sync()) << "the failure went with its stream";
  for (int i = 0; i < 3; ++i) {
    const Stream stream = device.stream();
    busy(stream, 0);
    EXPECT_TRUE(finished(stream));
  }
}

SLIP_OVER_DEVICES(Failures);

}  // namespace
}  // namespace slip::test::failures
