// Calls with invalid arguments: the error names the values, and the stream continues to work.
#include <limits>
#include <vector>

#include "backend/support.hpp"

namespace slip::test_bad_input {
namespace {

struct BadInput : testing::Test {
  std::vector<Device> devices = Device::open_all("cpu", 2);
  Device& device = devices[0];
  Buffer memory = device.alloc(128, MemoryKind::kDevice, "memory");
  Buffer pinned = device.alloc(128, MemoryKind::kPinned, "pinned");
  Buffer pageable = device.alloc(128, MemoryKind::kPageable, "pageable");
  Buffer foreign = devices[1].alloc(128, MemoryKind::kDevice, "foreign");
  Stream stream = device.stream();

  void TearDown() override {
    stream.launch(test::nothing());
    EXPECT_TRUE(test::finishes(stream)) << "a refused call leaves the stream as it was";
  }
};

TEST_F(BadInput, CopiesOfDifferentSizes) {
  const std::string text = test::text_of([&] { stream.copy(memory.slice(0, 32), pinned.slice(0, 64)); });
  EXPECT_TRUE(test::contains(text, "64 bytes into a range of 32")) << text;
}

TEST_F(BadInput, OverlappingCopies) {
  const std::string text = test::text_of([&] { stream.copy(memory.slice(0, 64), memory.slice(32, 64)); });
  EXPECT_TRUE(test::contains(text, "'memory' overlaps")) << text;
  EXPECT_EQ(test::code_of([&] { stream.copy(memory, memory); }), ErrorCode::kInvalidValue);
  EXPECT_NO_THROW(stream.copy(memory.slice(0, 64), memory.slice(64, 64)));
  const Buffer alias = device.wrap(static_cast<char*>(pinned.native()) + 16, 64, MemoryKind::kPinned, "alias");
  EXPECT_EQ(test::code_of([&] { stream.copy(alias, pinned.slice(0, 64)); }), ErrorCode::kInvalidValue)
      << "two buffers, one memory";
}

TEST_F(BadInput, CopiesOfNothing) {
  EXPECT_NO_THROW(stream.copy(memory.slice(0, 0), pinned.slice(128, 0)));
  EXPECT_NO_THROW(stream.copy(memory.slice(0, 0), pageable.slice(0, 0)));
  EXPECT_NO_THROW(stream.copy(pageable.slice(0, 0), memory.slice(0, 0)));
  EXPECT_NO_THROW(stream.fill(memory.slice(64, 0), 1));
  EXPECT_NO_THROW(device.copy(pinned.slice(0, 0), pageable.slice(0, 0)));
}

TEST_F(BadInput, KernelsOnMemoryTheyCannotReach) {
  EXPECT_EQ(test::code_of([&] { stream.launch(test::nothing(), {.reads = {pageable}}); }), ErrorCode::kInvalidValue);
  const std::string text = test::text_of([&] { stream.launch(test::nothing(), {.writes = {foreign}}); });
  EXPECT_TRUE(test::contains(text, "'foreign'")) << text;
  EXPECT_TRUE(test::contains(text, "enable_peer_access")) << text;
  device.enable_peer_access(devices[1]);
  EXPECT_NO_THROW(stream.launch(test::nothing(), {.writes = {foreign}}));
  device.disable_peer_access(devices[1]);
  EXPECT_EQ(test::code_of([&] { stream.launch(test::nothing(), {.writes = {foreign}}); }),
            ErrorCode::kPeerAccessNotEnabled);
}

TEST_F(BadInput, KernelsWithoutAFunction) {
  static const Kernel kEmpty{"hollow", nullptr, nullptr};
  const std::string text = test::text_of([&] { stream.launch(kEmpty); });
  EXPECT_TRUE(test::contains(text, "'hollow' has no cpu function")) << text;
  EXPECT_EQ(test::code_of([&] { device.legacy_stream().launch(kEmpty); }), ErrorCode::kUnsupported);
  EXPECT_EQ(test::code_of([&] { stream.host({}); }), ErrorCode::kInvalidValue);
}

TEST_F(BadInput, Widths) {
  for (const double width : {0.0, -1.0, 1.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(test::code_of([&] { stream.launch(test::nothing(), {}, {.width = width}); }), ErrorCode::kInvalidValue);
}

TEST_F(BadInput, Words) {
  EXPECT_EQ(test::code_of([&] { stream.wait_value(pinned.slice(0, 8), 1); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { stream.wait_value(pinned.slice(2, 4), 1); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { stream.write_value(pageable.slice(0, 4), 1); }), ErrorCode::kInvalidValue);
  alignas(4) char bytes[16] = {};
  const Buffer odd = device.wrap(bytes + 1, 12, MemoryKind::kPinned);
  EXPECT_EQ(test::code_of([&] { stream.write_value(odd.slice(0, 4), 1); }), ErrorCode::kInvalidValue)
      << "its address is odd";
  EXPECT_NO_THROW(stream.write_value(odd.slice(3, 4), 1));
}

TEST_F(BadInput, FillsOfPageableMemory) {
  EXPECT_EQ(test::code_of([&] { stream.fill(pageable, 1); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { device.fill(pageable, 1); }), ErrorCode::kInvalidValue);
}

TEST_F(BadInput, EventsOfAnotherDevice) {
  const Stream there = devices[1].stream();
  Event event = there.record();
  const StreamPoint point = event.point();
  const std::string text = test::text_of([&] { stream.record(event); });
  EXPECT_TRUE(test::contains(text, "rule 67")) << text;
  EXPECT_EQ(event.point().stream, point.stream) << "unchanged by a record that failed";
  Event tied(devices[1]);
  EXPECT_EQ(test::code_of([&] { stream.record(tied); }), ErrorCode::kInvalidHandle);
  EXPECT_FALSE(tied.recorded());
  TimedEvent timed(devices[1]);
  EXPECT_EQ(test::code_of([&] { stream.record(timed); }), ErrorCode::kInvalidHandle);
  EXPECT_NO_THROW(stream.wait(event)) << "waiting is allowed (rule 68)";
}

TEST_F(BadInput, TimesThatDoNotExist) {
  TimedEvent never;
  const TimedEvent start = stream.record_timed();
  stream.sync();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(start - never); }), ErrorCode::kInvalidHandle);
  EXPECT_EQ(test::code_of([&] { static_cast<void>(never - never); }), ErrorCode::kInvalidHandle);
  const Stream there = devices[1].stream();
  const TimedEvent far = there.record_timed();
  there.sync();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(far - start); }), ErrorCode::kInvalidHandle);
  TimedEvent untimed;
  stream.record(static_cast<Event&>(untimed));
  stream.sync();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(untimed - start); }), ErrorCode::kInvalidHandle)
      << "recorded without its time";
  test::Gate gate(device);
  gate.hold(stream);
  const TimedEvent later = stream.record_timed();
  EXPECT_EQ(test::code_of([&] { static_cast<void>(later - start); }), ErrorCode::kNotReady);
}

TEST_F(BadInput, ATimedEventThatCouldNotBeRecordedKeepsItsTime) {
  test::Bodies bodies;
  const Stream broken = device.stream();
  TimedEvent event;
  broken.record(event);
  const TimedEvent end = broken.record_timed();
  broken.sync();
  const auto elapsed = end - event;
  bodies.launch(broken, [] { throw std::runtime_error("broken"); });
  EXPECT_EQ(test::code_of([&] { broken.sync(); }), ErrorCode::kLaunchFailed);
  EXPECT_EQ(test::code_of([&] { broken.record(event); }), ErrorCode::kLaunchFailed);
  EXPECT_EQ(end - event, elapsed);
}

TEST_F(BadInput, Peers) {
  EXPECT_EQ(test::code_of([&] { device.enable_peer_access(device); }), ErrorCode::kInvalidDevice);
  EXPECT_EQ(test::code_of([&] { device.disable_peer_access(devices[1]); }), ErrorCode::kPeerAccessNotEnabled);
  device.enable_peer_access(devices[1]);
  EXPECT_EQ(test::code_of([&] { device.enable_peer_access(devices[1]); }), ErrorCode::kPeerAccessAlreadyEnabled);
}

TEST_F(BadInput, Devices) {
  for (const char* name : {"", "gpu", "cpu:x", "cpu:-1", ":", "cpu ", "CPU", "cpu:1:2"}) {
    const std::string text = test::text_of([&] { Device::open(name); });
    EXPECT_TRUE(test::contains(text, "invalid device")) << name << ": " << text;
  }
  EXPECT_EQ(test::code_of([] { Device::open_all("cpu", 0); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([] { Device::open_all("cpu", -3); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([] { Device::open_all("cpu", 5'000); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([] { Device::open("cpu", {.compute_workers = -1}); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([] { Device::open("cpu", {.compute_workers = 1 << 30}); }), ErrorCode::kInvalidValue);
  EXPECT_EQ(test::code_of([&] { device.stream(static_cast<StreamFlags>(7)); }), ErrorCode::kInvalidValue);
}

// The stream is closed before its work fails: the device reports that once, and is not spoilt for ever.
TEST_F(BadInput, AFailureOfAClosedStreamIsReportedOnce) {
  test::Bodies bodies;
  test::Gate gate(device);
  {
    const Stream closed = device.stream();
    gate.hold(closed);
    bodies.launch(closed, [] { throw std::runtime_error("nobody's"); });
  }
  gate.open();
  EXPECT_EQ(test::code_of([&] { device.sync(); }), ErrorCode::kLaunchFailed);
  EXPECT_NO_THROW(device.sync());
}

}  // namespace
}  // namespace slip::test_bad_input
