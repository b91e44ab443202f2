// Section E: several devices (rules 72-76).
#include "support/errors.hpp"
#include "support/gate.hpp"
#include "support/kernels.hpp"
#include "support/times.hpp"

namespace slip::test::peers {
namespace {

class Peers : public DeviceTest {
 protected:
  static void set_device_words(const Device& device, Range range, unsigned char byte) {
    device.fill(range, byte);
    device.sync();
  }
};

TEST_P(Peers, Rule72_PeerAccessIsEnabledOnceAndInOneDirection) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Device &here = devices[0], &there = devices[1];
  const Stream stream = here.stream(), back = there.stream();
  const Buffer remote = there.alloc(64, MemoryKind::kDevice, "remote"),
               local = here.alloc(64, MemoryKind::kDevice, "local");
  const auto use = [](const Stream& of, const Buffer& buffer) {
    of.launch(store_kernel(), {.writes = {buffer}, .scalars = {1}});
    of.sync();
  };
  const std::string here_id = std::to_string(here.id()), there_id = std::to_string(there.id());
  EXPECT_TRUE(here.can_access_peer(there));
  EXPECT_FALSE(here.can_access_peer(here));
  EXPECT_TRUE(fails([&] { use(stream, remote); }, ErrorCode::kPeerAccessNotEnabled, {"remote", here_id, there_id}));
  here.enable_peer_access(there);
  EXPECT_NO_THROW(use(stream, remote));
  EXPECT_TRUE(fails([&] { use(back, local); }, ErrorCode::kPeerAccessNotEnabled, {"local"})) << "one direction only";
  EXPECT_TRUE(
      fails([&] { here.enable_peer_access(there); }, ErrorCode::kPeerAccessAlreadyEnabled, {here_id, there_id}));
  here.disable_peer_access(there);
  EXPECT_TRUE(fails([&] { use(stream, remote); }, ErrorCode::kPeerAccessNotEnabled, {"remote"}));
  EXPECT_TRUE(fails([&] { here.disable_peer_access(there); }, ErrorCode::kPeerAccessNotEnabled, {here_id, there_id}));
  EXPECT_TRUE(fails([&] { here.enable_peer_access(here); }, ErrorCode::kInvalidDevice));
}

TEST_P(Peers, Rule73_LegacyPeerCopyIsABarrierOnBothDevices) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Device &here = devices[0], &there = devices[1];
  const Buffer from = there.alloc(64), to = here.alloc(64);
  const Stream before = there.stream(), after = there.stream(), after_here = here.stream();
  set_device_words(there, from, 1);
  Gate gate(there);
  gate.hold(before);
  before.fill(from, 2);
  here.copy(to, from);  // must wait for the other device's blocking streams
  after.fill(from, 3);  // and be waited for by them
  busy(after_here, 0);
  EXPECT_TRUE(progressed(here) && progressed(there));
  EXPECT_FALSE(here.legacy_stream().query());
  EXPECT_FALSE(after.query());
  EXPECT_FALSE(after_here.query());
  gate.open();
  EXPECT_EQ(words_of(here, to)[0], 0x02020202u);
  EXPECT_EQ(words_of(there, from)[0], 0x03030303u);
}

TEST_P(Peers, Rule73_LegacyPeerCopyHoldsTheOtherDeviceToo) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Device &here = devices[0], &there = devices[1];
  const Buffer from = there.alloc(64), to = here.alloc(64);
  const Stream blocker = here.stream(), after = there.stream();
  set_device_words(there, from, 1);
  Gate gate(here);
  gate.hold(blocker);  // so the copy cannot run yet
  here.legacy_stream().copy(to, from);
  after.fill(from, 3);
  EXPECT_TRUE(progressed(here) && progressed(there));
  EXPECT_FALSE(after.query()) << "the source was overwritten before the copy";
  gate.open();
  EXPECT_TRUE(finished(after));
  EXPECT_EQ(words_of(here, to)[0], 0x01010101u);
}

TEST_P(Peers, Rule74_PeerCopyInACreatedStreamOrdersNothingElse) {
  SLIP_NEEDS_DEVICES(2);
  if (simulated()) {
    const std::vector<Device> devices = open_ideal(2);
    const Stream copies = devices[0].stream(), compute = devices[0].stream(), remote = devices[1].stream();
    const Buffer from = devices[1].alloc(2'000'000), to = devices[0].alloc(2'000'000);
    const TimedEvent begin = remote.record_timed();
    EXPECT_EQ(duration(devices[0], [&] { copies.copy(to, from), busy(compute, 4), busy(remote, 4); }), 4 * kMs);
    const TimedEvent end = remote.record_timed();
    end.sync();
    EXPECT_EQ(end - begin, std::chrono::milliseconds(4));
    return;
  }
  const std::vector<Device> devices = open_all(2);
  const Buffer from = devices[1].alloc(64), to = devices[0].alloc(64);
  set_device_words(devices[1], from, 7);
  const Stream copies = devices[0].stream(), compute = devices[0].stream(), remote = devices[1].stream();
  {
    Gate gate(devices[0]);
    gate.hold(copies);
    HostCall copy([&] { copies.copy(to, from); });
    EXPECT_TRUE(copy.ends()) << "asynchronous to the host";
    busy(compute, 0);
    busy(remote, 0);
    EXPECT_TRUE(finished(compute));
    EXPECT_TRUE(finished(remote));
  }
  EXPECT_EQ(words_of(devices[0], to)[0], 0x07070707u);
  Gate gate(devices[1]);
  gate.hold(remote);
  copies.copy(to, from);
  EXPECT_TRUE(finished(copies));
}

TEST_P(Peers, Rule75_WithoutALinkAPeerCopyGoesThroughTheHost) {
  SLIP_NEEDS_DEVICES(2);
  if (simulated()) {
    const std::vector<Device> devices = open_ideal(2);
    const Stream stream = devices[0].stream(), other = devices[1].stream();
    const Buffer from = devices[1].alloc(2'000'000), to = devices[0].alloc(2'000'000);
    const Buffer memory = devices[1].alloc(3'000'000), pinned = devices[1].alloc(3'000'000, MemoryKind::kPinned);
    EXPECT_EQ(duration(devices[0], [&] { stream.copy(to, from); }), 4 * kMs) << "two hops of 2 ms";
    const auto shared = [&] {
      other.copy(pinned, memory);  // the engine out of the other device is taken for 3 ms
      stream.copy(to, from);
    };
    EXPECT_EQ(duration(devices[0], shared), 7 * kMs);
    return;
  }
  const std::vector<Device> devices = open_all(2);
  const Buffer from = devices[1].alloc(64), to = devices[0].alloc(64);
  set_device_words(devices[1], from, 9);
  const Stream stream = devices[0].stream(), remote = devices[1].stream();
  stream.copy(to, from);  // works without enabling anything, in a stream of either device
  EXPECT_TRUE(finished(stream));
  EXPECT_EQ(words_of(devices[0], to)[0], 0x09090909u);
  remote.copy(from.slice(0, 32), to.slice(32, 32));
  EXPECT_TRUE(finished(remote));
}

TEST_P(Peers, Rule76_DeviceSyncIsOfOneDevice) {
  SLIP_NEEDS_DEVICES(2);
  const std::vector<Device> devices = open_all(2);
  const Stream here = devices[0].stream(), there = devices[1].stream();
  Gate gate(devices[1]);
  gate.hold(there);
  busy(here, 0);
  HostCall sync([&] { devices[0].sync(); });
  EXPECT_TRUE(sync.ends());
  EXPECT_FALSE(there.query());
}

SLIP_OVER_DEVICES(Peers);

}  // namespace
}  // namespace slip::test::peers
