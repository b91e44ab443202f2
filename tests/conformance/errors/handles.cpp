// Bad input: buffers, streams, events and devices that are gone or of the wrong kind. The error names the values, and
// nothing hangs or leaks (the address sanitizer looks on).
#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::handles {
namespace {

class BadHandles : public DeviceTest {};

TEST_P(BadHandles, UnknownDevices) {
  const auto opening = [](const char* name) { return [name] { static_cast<void>(Device::open(name)); }; };
  EXPECT_TRUE(fails(opening("gpu"), ErrorCode::kInvalidDevice, {"'gpu'", "cpu"})) << "names what there is";
  EXPECT_TRUE(fails(opening(""), ErrorCode::kInvalidDevice, {"cpu"}));
  EXPECT_TRUE(fails(opening("cpu:x"), ErrorCode::kInvalidDevice, {"cpu:x"}));
  EXPECT_TRUE(fails(opening("sim:nothing"), ErrorCode::kInvalidDevice, {"sim:nothing", "sim:h200"}));
  EXPECT_TRUE(fails(opening("sim:/no/such/file.json"), ErrorCode::kIo, {"/no/such/file.json"}));
  EXPECT_TRUE(fails([] { static_cast<void>(Device::open_all("cpu", 0)); }, ErrorCode::kInvalidValue, {"0"}));
  EXPECT_TRUE(fails([] { static_cast<void>(Device::open_all("cpu", 100000)); }, ErrorCode::kInvalidValue, {"100000"}));
}

TEST_P(BadHandles, DestroyedStreams) {
  const Device device = open();
  const Buffer memory = device.alloc(64), pinned = device.alloc(64, MemoryKind::kPinned);
  const Buffer word = device.alloc(4, MemoryKind::kPinned);
  StreamRef gone = device.legacy_stream();
  {
    const Stream stream = device.stream();
    gone = stream;
  }
  const Stream reused = device.stream();  // may take the place of the old one, not its name
  Event event = reused.record();
  TimedEvent timed;
  Plan plan;
  const std::function<void()> calls[] = {
      [&] { busy(gone, 0); },
      [&] { gone.copy(memory, pinned); },
      [&] { gone.fill(memory, 1); },
      [&] { gone.host([] {}); },
      [&] { gone.record(event); },
      [&] { gone.record(timed); },
      [&] { static_cast<void>(gone.record_timed()); },
      [&] { gone.wait(event); },
      [&] { gone.wait(Event()); },
      [&] { gone.wait_value(word, 1); },
      [&] { gone.write_value(word, 1); },
      [&] { static_cast<void>(gone.alloc(64)); },
      [&] { gone.sync(); },
      [&] { static_cast<void>(gone.sync_for(std::chrono::seconds(1))); },
      [&] { static_cast<void>(gone.query()); },
      [&] { gone.begin_capture(); },
      [&] { static_cast<void>(gone.end_capture()); },
      [&] { static_cast<void>(gone.capturing()); },
      [&] { gone.launch(plan); },
      [&] { static_cast<void>(gone.flags()); },
      [&] { static_cast<void>(gone.priority()); },
      [&] { static_cast<void>(gone.native()); },
  };
  const std::string name = "stream " + std::to_string(gone.id());
  for (const auto& call : calls)
    EXPECT_TRUE(fails(call, ErrorCode::kInvalidHandle, {name, "destroyed"})) << &call - calls;
  EXPECT_TRUE(finished(reused));
  EXPECT_FALSE(timed.recorded());
  EXPECT_TRUE(event.query());
}

TEST_P(BadHandles, MovedFromStreams) {
  const Device device = open();
  Stream stream = device.stream();
  const Stream owner = std::move(stream);
  EXPECT_TRUE(
      fails([&] { busy(stream, 0); }, ErrorCode::kInvalidHandle));  // NOLINT(bugprone-use-after-move): the point
  busy(owner, 0);
  EXPECT_TRUE(finished(owner));
}

TEST_P(BadHandles, FreedBuffers) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer memory = device.alloc(64);
  Range gone, gone_host;
  {
    const Buffer buffer = device.alloc(64), host = device.alloc(64, MemoryKind::kPinned);
    gone = buffer;
    gone_host = host;
  }
  const Buffer next = device.alloc(64);  // may take the place of the old one
  const std::function<void()> calls[] = {
      [&] { stream.copy(gone, memory); },
      [&] { stream.copy(memory, gone); },
      [&] { stream.copy(memory, gone_host); },
      [&] { stream.fill(gone, 1); },
      [&] {
        stream.launch(store_kernel(), {.writes = {memory, gone}, .scalars = {1}});
      },
      [&] { stream.launch(add_kernel(), {.reads = {gone}, .writes = {memory}, .scalars = {1}}); },
      [&] { stream.wait_value(gone_host.slice(0, 4), 1); },
      [&] { stream.write_value(gone_host.slice(0, 4), 1); },
      [&] { device.copy(memory, gone); },
      [&] { device.fill(gone, 1); },
  };
  for (const auto& call : calls) EXPECT_TRUE(fails(call, ErrorCode::kInvalidHandle, {"freed"})) << &call - calls;
  EXPECT_TRUE(fails([&] { stream.fill(gone, 1); }, ErrorCode::kInvalidHandle, {"id " + std::to_string(gone.id)}));
  EXPECT_TRUE(finished(stream));
}

TEST_P(BadHandles, EmptyBuffers) {
  const Device device = open();
  const Stream stream = device.stream();
  const Buffer memory = device.alloc(64);
  Buffer empty;
  EXPECT_TRUE(fails([&] { stream.copy(memory, empty); }, ErrorCode::kInvalidHandle, {"copy source"}));
  EXPECT_TRUE(fails([&] { stream.copy(empty, memory); }, ErrorCode::kInvalidHandle, {"copy destination"}));
  EXPECT_TRUE(fails([&] { stream.fill(Range(), 1); }, ErrorCode::kInvalidHandle, {"fill"}));
  EXPECT_TRUE(fails([&] { stream.free(std::move(empty)); }, ErrorCode::kInvalidHandle));
  EXPECT_TRUE(fails([&] { static_cast<void>(empty.kind()); }, ErrorCode::kInvalidHandle));
  EXPECT_TRUE(fails([&] { static_cast<void>(empty.host_read<int>()); }, ErrorCode::kInvalidHandle));
}

TEST_P(BadHandles, EventsOfAnotherDevice) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  TimedEvent event = here.record_timed();
  const std::string ids[] = {"device " + std::to_string(devices[0].id()), "device " + std::to_string(devices[1].id())};
  EXPECT_TRUE(fails([&] { there.record(event); }, ErrorCode::kInvalidHandle, {ids[0], ids[1]}));
  here.sync();
  EXPECT_TRUE(event.query()) << "the record it had is untouched";
  const TimedEvent later = here.record_timed();
  later.sync();
  EXPECT_GE((later - event).count(), 0);
}

TEST_P(BadHandles, BuffersOfAnotherDevice) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  Buffer ordered = here.alloc(64, "ordered");
  EXPECT_TRUE(fails([&] { there.free(std::move(ordered)); }, ErrorCode::kInvalidHandle,
                    {"ordered", std::to_string(devices[0].id()), std::to_string(devices[1].id())}));
  EXPECT_TRUE(ordered) << "still ours";
  const Buffer remote = devices[1].alloc(64, MemoryKind::kDevice, "remote");
  EXPECT_TRUE(fails([&] { here.launch(store_kernel(), {.writes = {remote}, .scalars = {1}}); },
                    ErrorCode::kPeerAccessNotEnabled, {"store", "remote"}));
  Buffer plain = devices[0].alloc(64, MemoryKind::kDevice, "plain");
  EXPECT_TRUE(fails([&] { here.free(std::move(plain)); }, ErrorCode::kInvalidValue, {"plain"})) << "not from a stream";
  EXPECT_TRUE(plain);
}

TEST_P(BadHandles, ARecordThatFailsLeavesTheEventAsItWas) {
  SLIP_NEEDS_FAILING_KERNELS();
  const Device device = open();
  const Stream stream = device.stream(), broken = device.stream();
  const TimedEvent begin = stream.record_timed();
  TimedEvent event = stream.record_timed();
  stream.sync();
  const auto before = event - begin;
  broken.launch(fail_kernel());
  EXPECT_TRUE(fails([&] { broken.sync(); }, ErrorCode::kLaunchFailed));
  EXPECT_TRUE(fails([&] { broken.record(event); }, ErrorCode::kLaunchFailed));
  EXPECT_TRUE(event.query());
  EXPECT_EQ(event - begin, before);
}

SLIP_OVER_DEVICES(BadHandles);

}  // namespace
}  // namespace slip::test::handles
