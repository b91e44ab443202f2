// Connections over a cable that is slow or loses packets.
#include "transport/cable.hpp"
#include "transport/net_ends.hpp"

namespace slip::test {
namespace {

// End 0 sends to end 1 over a cable of this kind, and both check what came.
void send_over(const std::string& discipline, std::size_t bytes, transport::NetOptions how = {}) {
  std::promise<transport::NetHandle> handle;
  bool shaped = true;
  const std::string reason = Cable::run([&](int end) {
    transport::NetOptions options = how;
    options.rank = end;
    options.host = kCableHosts[end];
    if (end == 1) {
      const auto listener = transport::net_tcp().listen(options);
      handle.set_value(listener->handle());
      const auto receiver = accept(*listener);
      Bytes to(bytes);
      finish(*receiver, start(*receiver, to));
      EXPECT_EQ(to, pattern(bytes, 6));
      return;
    }
    shaped = discipline.empty() || Cable::shape(discipline);
    const auto sender = transport::net_tcp().connect(handle.get_future().get(), options, long_deadline());
    Bytes from = pattern(bytes, 6);
    finish(*sender, start(*sender, from));
  });
  if (!reason.empty()) GTEST_SKIP() << reason;
  if (!shaped) GTEST_SKIP() << "sent over a plain cable: the tool tc cannot do '" << discipline << "' here";
}

TEST(Cables, CarryMessages) { send_over("", 8 << 20); }
TEST(Cables, MayBeSlow) { send_over("tbf rate 400mbit burst 64kb latency 20ms", 4 << 20); }
// A queue of a few packets: what comes faster than they leave is dropped.
TEST(Cables, MayDropPackets) { send_over("tbf rate 200mbit burst 4kb limit 6kb", 1 << 20); }
TEST(Cables, MayLoseAndDelayPackets) { send_over("netem delay 1ms loss 2%", 1 << 20); }

TEST(Cables, ShareALineOfSeveralSockets) {
  transport::NetOptions options;
  options.sockets = 4;
  options.stripe_bytes = 64 << 10;
  send_over("", 8 << 20, options);
}

TEST(Cables, SendWithoutCopies) {
  transport::NetOptions options;
  options.zero_copy_from = 10'000;
  send_over("", 8 << 20, options);
}

}  // namespace
}  // namespace slip::test
