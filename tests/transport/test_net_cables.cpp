// Connections over a cable that is slow, loses packets or is cut.
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

}  // namespace
}  // namespace slip::test::test_net_cables
