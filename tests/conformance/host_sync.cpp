// Section B: what the host waits for, and which errors it gets (rules 21-31).
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::host_sync {
namespace {

class HostSync : public DeviceTest {};

TEST_P(HostSync, Rule21_DeviceSyncWaitsForAllStreamsOfAllThreads) {
  const Device device = open();
  const Stream blocking = device.stream(), free = device.stream(StreamFlags::kNonBlocking);
  for (const StreamRef stream : {StreamRef(blocking), StreamRef(free), device.legacy_stream()}) {
    Gate gate(device);
    gate.hold(stream);
    HostCall sync([&] { device.sync(); });
    EXPECT_TRUE(sync.holds(device));
    gate.open();
    EXPECT_TRUE(sync.ends());
    EXPECT_TRUE(stream.query());
  }
  Gate gate(device);
  HostCall issue([&] { gate.hold(device.per_thread_stream()); });
  EXPECT_TRUE(issue.ends());
  HostCall sync([&] { device.sync(); });
  EXPECT_TRUE(sync.holds(device));
  gate.open();
  EXPECT_TRUE(sync.ends());
}

TEST_P(HostSync, WaitsWithALimitEndAtIt) {
  const Device device = open();
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  const Event event = stream.record();
  EXPECT_FALSE(device.sync_for(std::chrono::milliseconds(2)));
  EXPECT_FALSE(event.sync_for(std::chrono::milliseconds(2)));
  gate.open();
  EXPECT_TRUE(event.sync_for(std::chrono::seconds(30)));
  EXPECT_TRUE(device.sync_for(std::chrono::seconds(30)));
  EXPECT_TRUE(Event().sync_for(std::chrono::nanoseconds(1))) << "never recorded: nothing to wait for (rule 51)";
}

TEST_P(HostSync, Rule22_DeviceSyncReportsWhatFailedBefore) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream();
  stream.launch(fail_kernel(), {.name = "layer 3"});
  EXPECT_TRUE(fails([&] { device.sync(); }, ErrorCode::kLaunchFailed, {"layer 3", "on purpose"}));
}

TEST_P(HostSync, Rule23_StreamSyncWaitsForItsStreamOnly) {
  const Device device = open();
  const Trail trail(device);
  const Stream stream = device.stream(), other = device.stream();
  Gate gate(device);
  gate.hold(other);
  trail.leave(stream, 1);
  EXPECT_TRUE(finished(stream));
  EXPECT_FALSE(other.query());
  gate.open();
  EXPECT_TRUE(trail.is({1}));
}

TEST_P(HostSync, Rule23_StreamSyncWaitsForAllOfItsStream) {
  const Device device = open();
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  HostCall sync([&] { stream.sync(); });
  EXPECT_TRUE(sync.holds(device));
  EXPECT_FALSE(stream.sync_for(std::chrono::microseconds(1)));
  gate.open();
  EXPECT_TRUE(sync.ends());
}

TEST_P(HostSync, Rule24_SyncOfTheLegacyStreamCoversBlockingStreams) {
  const Device device = open();
  const Stream blocking = device.stream(), free = device.stream(StreamFlags::kNonBlocking);
  {
    Gate gate(device);
    gate.hold(free);
    EXPECT_TRUE(finished(device.legacy_stream()));
    EXPECT_TRUE(device.legacy_stream().query());
  }
  device.sync();
  Gate gate(device);
  gate.hold(blocking);
  HostCall sync([&] { device.legacy_stream().sync(); });
  EXPECT_TRUE(sync.holds(device));
  EXPECT_FALSE(device.legacy_stream().query());
  gate.open();
  EXPECT_TRUE(sync.ends());
}

TEST_P(HostSync, Rule25_QueryNeverBlocksAndLeavesNoError) {
  const Device device = open();
  const Stream stream = device.stream();
  static_cast<void>(last_error());
  EXPECT_TRUE(stream.query());
  Gate gate(device);
  gate.hold(stream);
  busy(stream, 0);
  const Event event = stream.record();
  EXPECT_FALSE(stream.query());
  EXPECT_FALSE(event.query());
  EXPECT_EQ(peek_last_error(), ErrorCode::kOk);
  EXPECT_NO_THROW(busy(stream, 0)) << "not sticky";
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(stream.query());
  EXPECT_TRUE(event.query());
}

TEST_P(HostSync, Rule26_AQueryThatSaysYesOrdersTheHost) {
  const Device device = open();
  Buffer words = device.alloc(4096, MemoryKind::kPinned, "words");
  const Stream stream = device.stream();
  const auto until = std::chrono::steady_clock::now() + kLimit;
  for (std::uint32_t round = 1; round <= 20; ++round) {
    stream.launch(store_kernel(), {.writes = {words}, .scalars = {round}});
    const Event event = stream.record();
    while (!(round % 2 ? stream.query() : event.query())) ASSERT_LT(std::chrono::steady_clock::now(), until);
    EXPECT_TRUE(all_words(words, round));  // without any sync; ThreadSanitizer checks it
  }
}

TEST_P(HostSync, Rule27_EventSyncWaitsForTheLatestRecordAtTheCall) {
  const Device device = open();
  const Stream first = device.stream(), second = device.stream();
  Event event = first.record();
  event.sync();
  Gate gate(device), never(device);
  gate.hold(second);
  second.record(event);
  HostCall sync([event] { event.sync(); });
  EXPECT_TRUE(sync.holds(device));
  never.hold(first);
  first.record(event);  // after that call: not its business
  gate.open();
  EXPECT_TRUE(sync.ends());
  EXPECT_FALSE(event.query());
}

TEST_P(HostSync, Rule29_LaunchReturnsBeforeTheKernelHasRun) {
  const Device device = open();
  Buffer word = device.alloc(4, MemoryKind::kPinned, "word");
  set_words(word, 0);
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  stream.launch(store_kernel(), {.writes = {word}, .scalars = {1}});
  EXPECT_TRUE(peek_words(word, 0));
  EXPECT_FALSE(stream.query());
  gate.open();
  EXPECT_TRUE(finished(stream));
  EXPECT_TRUE(all_words(word, 1));
}

TEST_P(HostSync, Rule30_LaunchBlockingWaitsForEachLaunch) {
  const Device device = open([](DeviceOptions& options) { options.launch_blocking = true; });
  Buffer word = device.alloc(4, MemoryKind::kPinned, "word");
  const Stream stream = device.stream();
  for (std::uint32_t value = 1; value <= 3; ++value) {
    stream.launch(store_kernel(), {.writes = {word}, .scalars = {value}});
    EXPECT_TRUE(all_words(word, value));
  }
  Gate gate(device);
  gate.hold(stream);
  HostCall launch([&] { stream.launch(store_kernel(), {.writes = {word}, .scalars = {9}}); });
  EXPECT_TRUE(launch.holds(device));
  gate.open();
  EXPECT_TRUE(launch.ends());
  EXPECT_TRUE(all_words(word, 9));
}

TEST_P(HostSync, Rule31_FailureIsReportedByALaterCall) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream();
  Gate gate(device);
  gate.hold(stream);
  EXPECT_NO_THROW(stream.launch(fail_kernel(), {.name = "doomed"}));
  EXPECT_NO_THROW(busy(stream, 0)) << "nothing has failed yet";
  gate.open();
  EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kLaunchFailed, {"doomed", "host_sync.cpp"}));
  EXPECT_TRUE(fails([&] { busy(stream, 0); }, ErrorCode::kLaunchFailed, {"doomed"})) << "the stream stays poisoned";
}

TEST_P(HostSync, Rule31_LaunchBlockingReportsAtTheLaunch) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open([](DeviceOptions& options) { options.launch_blocking = true; });
  const Stream stream = device.stream();
  EXPECT_TRUE(fails([&] { stream.launch(fail_kernel(), {.name = "doomed"}); }, ErrorCode::kLaunchFailed, {"doomed"}));
}

SLIP_OVER_DEVICES(HostSync);

}  // namespace
}  // namespace slip::test::host_sync
