// Connections over a cable that is slow, loses packets or is cut.
#include <arpa/inet.h>

#include <array>

#include "support/errors.hpp"
#include "transport/cable.hpp"
#include "transport/net_ends.hpp"

namespace slip::test::test_net_cables {
namespace {

// End 0 sends to end 1 over a cable of this kind, and both check what came.
void expect_to_come_over(const std::string& discipline, std::size_t bytes, transport::NetOptions how = {}) {
  std::promise<transport::NetHandle> handle;
  bool shaped = true;
  const std::string reason = Cable::run([&](int end) {
    transport::NetOptions options = how;
    options.rank = end;
    options.host = kCableHosts[end];
    if (end == 1) {
      const auto listener = transport::net_tcp().listen(options);
      handle.set_value(listener->handle());
      const auto receiver = listener->accept(long_deadline());
      Memory to(*receiver, bytes), expected(*receiver, bytes);
      expected.fill(6);
      receiver->wait(irecv(*receiver, to.part()), long_deadline());
      EXPECT_EQ(to.bytes, expected.bytes);
      return;
    }
    shaped = discipline.empty() || Cable::shape(discipline);
    const auto sender = transport::net_tcp().connect(handle.get_future().get(), options, long_deadline());
    Memory from(*sender, bytes);
    from.fill(6);
    sender->wait(sender->isend(from.part()), long_deadline());
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
  if (!shaped) GTEST_SKIP() << "sent over a plain cable: the tool tc cannot do '" << discipline << "' here";
}

TEST(Cables, CarryMessages) { expect_to_come_over("", 8 << 20); }
TEST(Cables, MayBeSlow) { expect_to_come_over("tbf rate 400mbit burst 64kb latency 20ms", 4 << 20); }
// A queue of a few packets: what comes faster than they leave is dropped.
TEST(Cables, MayDropPackets) { expect_to_come_over("tbf rate 200mbit burst 4kb limit 6kb", 1 << 20); }
TEST(Cables, MayLoseAndDelayPackets) { expect_to_come_over("netem delay 1ms loss 2%", 1 << 20); }

TEST(Cables, ShareALineOfSeveralSockets) {
  transport::NetOptions options;
  options.sockets = 4;
  options.stripe_bytes = 64 << 10;
  expect_to_come_over("", 8 << 20, options);
}

TEST(Cables, SendWithoutCopies) {
  transport::NetOptions options;
  options.zero_copy_from = 10'000;
  expect_to_come_over("", 8 << 20, options);
}

// Both ends find it at their deadlines, and name the silent rank.
TEST(Cables, MayBeCut) {
  std::promise<transport::NetHandle> handle;
  std::promise<std::int64_t> cut;  // then the deadline begins: on busy cores all before it may take long
  const std::string reason = Cable::run([&](int end) {
    transport::NetOptions options;
    options.rank = end;
    options.host = kCableHosts[end];
    if (end == 1) {
      const auto listener = transport::net_tcp().listen(options);
      handle.set_value(listener->handle());
      const auto receiver = listener->accept(long_deadline());
      Memory to(*receiver, 64 << 20);
      transport::NetRequest* const request = irecv(*receiver, to.part(3));
      const transport::Deadline soon{cut.get_future().get(), nullptr};
      EXPECT_TRUE(
          fails([&] { receiver->wait(request, soon); }, ErrorCode::kTimeout, {"rank 0 at 10.77.0.1:", "with tag 3"}));
      return;
    }
    const auto sender = transport::net_tcp().connect(handle.get_future().get(), options, long_deadline());
    Memory from(*sender, 64 << 20);
    transport::NetRequest* request = sender->isend(from.part(3));
    EXPECT_TRUE(Cable::cut());
    const transport::Deadline soon{base::deadline_after(1'500'000'000), nullptr};
    cut.set_value(soon.at_ns);
    EXPECT_TRUE(
        fails([&] { sender->wait(request, soon); }, ErrorCode::kTimeout, {"rank 1 at 10.77.0.2:", "with tag 3"}));
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

// Nothing is under way when the interface goes down, so the kernel sends nothing that could remain unacknowledged.
TEST(Cables, ACutOfAnIdleConnectionIsNoticed) {
  std::promise<transport::SocketAddress> address;
  std::promise<void> over;
  const std::string reason = Cable::run([&](int end) {
    std::array<std::byte, 1> byte{};
    if (end == 1) {
      sockaddr_in own{};
      own.sin_family = AF_INET;
      ASSERT_EQ(::inet_pton(AF_INET, kCableHosts[1], &own.sin_addr), 1);
      const auto listener = transport::Socket::listen({reinterpret_cast<const sockaddr*>(&own), sizeof(own)});
      address.set_value(listener.local());
      const transport::Socket peer = listener.accept(long_deadline());
      peer.recv(byte, long_deadline());
      peer.send(byte, long_deadline());  // acknowledges the byte, too
      over.get_future().wait();
      return;
    }
    const auto socket = transport::Socket::connect(address.get_future().get(), long_deadline());
    socket.send(byte, long_deadline());
    socket.recv(byte, long_deadline());
    std::int64_t since = 0, silent_ns = 0;
    EXPECT_EQ(transport::unanswered_ns(socket, since), 0);
    EXPECT_TRUE(Cable::cut());
    EXPECT_EQ(socket.try_send(byte).bytes, 1U);
    const transport::Deadline deadline = long_deadline();
    while (silent_ns == 0 && transport::wait_a_moment(1'000'000, deadline) == transport::Waited::kReady)
      silent_ns = transport::unanswered_ns(socket, since);
    EXPECT_GT(silent_ns, 0);
    over.set_value();
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
}

}  // namespace
}  // namespace slip::test::test_net_cables
