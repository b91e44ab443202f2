// Sockets, addresses and interfaces.
#include <poll.h>

#include <thread>

#include "base/clock.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "transport/cable.hpp"
#include "transport/socket/address.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test::test_sockets {
namespace {

transport::Deadline soon() { return {base::deadline_after(20'000'000), nullptr}; }
transport::Deadline long_enough() { return {base::deadline_after(20'000'000'000), nullptr}; }

class SocketsAt : public testing::TestWithParam<const char*> {
 protected:
  static transport::SocketAddress place() {
    const std::string name = GetParam();
    if (name == "unix") return transport::SocketAddress::unix_name("slip-test-" + std::to_string(::getpid()));
    return transport::SocketAddress::loopback(name == "ipv6" ? AF_INET6 : AF_INET);
  }
};

TEST_P(SocketsAt, CarryMoreThanFitsIntoTheirBuffers) {
  const transport::Socket listener = transport::Socket::listen(place());
  const transport::Socket there = transport::Socket::connect(listener.local(), long_enough());
  const transport::Socket here = listener.accept(long_enough());
  std::vector<std::byte> sent(8 << 20), received(sent.size());
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 4096);
  std::thread sender([&] { there.send(sent, long_enough()); });
  here.recv(received, long_enough());
  sender.join();
  EXPECT_EQ(sent, received);
}

TEST_P(SocketsAt, EndAWaitAtItsDeadline) {
  const transport::Socket listener = transport::Socket::listen(place());
  EXPECT_TRUE(
      fails([&] { static_cast<void>(listener.accept(soon())); }, ErrorCode::kTimeout, {listener.local().text()}));
  const transport::Socket there = transport::Socket::connect(listener.local(), long_enough());
  std::byte one{};
  EXPECT_TRUE(fails([&] { there.recv({&one, 1}, soon()); }, ErrorCode::kTimeout, {there.peer().text()}));
  const std::vector<std::byte> flood(64 << 20);  // nobody reads
  EXPECT_TRUE(fails([&] { there.send(flood, soon()); }, ErrorCode::kTimeout, {there.peer().text()}));
}

TEST_P(SocketsAt, EndAWaitWhenAborted) {
  const transport::Socket listener = transport::Socket::listen(place());
  transport::AbortFlag abort;
  const transport::Deadline deadline{base::deadline_after(20'000'000'000), &abort};
  std::thread aborter([&] { abort.set(); });
  EXPECT_TRUE(fails([&] { static_cast<void>(listener.accept(deadline)); }, ErrorCode::kAborted));
  aborter.join();
  const transport::Socket there = transport::Socket::connect(listener.local(), long_enough());
  std::byte one{};
  EXPECT_TRUE(fails([&] { there.recv({&one, 1}, deadline); }, ErrorCode::kAborted));  // and stays so
}

TEST_P(SocketsAt, NotifyBothEndsOfAConnectionThatCloses) {
  const transport::Socket listener = transport::Socket::listen(place());
  const transport::Socket there = transport::Socket::connect(listener.local(), long_enough());
  listener.accept(long_enough()).close();
  std::byte bytes[4];
  EXPECT_TRUE(fails([&] { there.recv(bytes, long_enough()); }, ErrorCode::kIo,
                    {there.local().text(), there.peer().text(), "0 of 4 bytes"}));
}

TEST_P(SocketsAt, AreRefused) {
  transport::Socket listener = transport::Socket::listen(place());
  const transport::SocketAddress address = listener.local();
  listener.close();
  EXPECT_TRUE(fails([&] { static_cast<void>(transport::Socket::connect(address, long_enough())); }, ErrorCode::kIo,
                    {address.text()}));
}

INSTANTIATE_TEST_SUITE_P(Families, SocketsAt, testing::Values("ipv4", "ipv6", "unix"),
                         [](const auto& which) { return std::string(which.param); });

TEST(Addresses, TravelAndPrint) {
  const transport::SocketAddress four = transport::resolve("127.0.0.1", 80).front(),
                                 six = transport::resolve("::1", 81).front();
  EXPECT_EQ(four.text(), "127.0.0.1:80");
  EXPECT_EQ(six.text(), "[::1]:81");
  EXPECT_EQ(transport::SocketAddress(four.wire()).text(), four.text());
  EXPECT_EQ(transport::SocketAddress(six.wire()).text(), six.text());
  EXPECT_TRUE(fails([] { transport::SocketAddress address(transport::SocketAddress::WireFormat{}); }, ErrorCode::kParse,
                    {"family 0"}));
  EXPECT_TRUE(fails([] { static_cast<void>(transport::resolve("no such host", 1)); }, ErrorCode::kInvalidValue,
                    {"no such host"}));
}

TEST(Interfaces, AreChosenByNcclsRules) {
  const auto accepts = [](const char* rule, const char* name) {
    return transport::InterfaceFilter(rule).accepts(name);
  };
  EXPECT_TRUE(accepts("eth", "eth0"));
  EXPECT_FALSE(accepts("eth", "ib0"));
  EXPECT_TRUE(accepts("ib,eth", "eth1"));
  EXPECT_TRUE(accepts("=eth0", "eth0"));
  EXPECT_FALSE(accepts("=eth0", "eth01"));
  EXPECT_FALSE(accepts("^docker,lo", "docker0"));
  EXPECT_FALSE(accepts("^docker,lo", "lo"));
  EXPECT_TRUE(accepts("^docker,lo", "eth0"));
  EXPECT_TRUE(accepts("^=lo", "lo1"));
  EXPECT_FALSE(accepts("^=lo,eth0", "eth0"));
  EXPECT_TRUE(accepts("", "anything"));
  EXPECT_TRUE(fails([] { transport::InterfaceFilter rule("^"); }, ErrorCode::kInvalidValue, {"SLIP_SOCKET_IFNAME=^"}));
}

TEST(Interfaces, LeadToAddressesOfThisHost) {
  EXPECT_TRUE(transport::own_address(transport::InterfaceFilter("=lo")).is_loopback());
  EXPECT_FALSE(transport::own_address(transport::InterfaceFilter()).is_link_local());
  EXPECT_TRUE(fails([] { static_cast<void>(transport::own_address(transport::InterfaceFilter("=nothing0"))); },
                    ErrorCode::kInvalidValue, {"=nothing0", "lo (127.0.0.1)"}));
  const transport::SocketAddress end = transport::SocketAddress::loopback(AF_INET6, 1234);
  EXPECT_EQ(transport::own_address_towards(end, transport::InterfaceFilter()).text(), "[::1]:0");
  EXPECT_EQ(transport::own_address_towards(end, transport::InterfaceFilter("=lo")).text(), "[::1]:0");
}

// A listener that is bound to an interface accepts nothing from others, so it must not listen without the binding.
TEST(Interfaces, ThatAreMissingCannotBeListenedAt) {
  const transport::SocketAddress address = transport::SocketAddress::loopback(AF_INET);
  EXPECT_TRUE(fails([&] { static_cast<void>(transport::Socket::listen(address, "slip-none")); }, ErrorCode::kIo,
                    {address.text(), "slip-none"}));
  for (const char* name : {"lo", "lo:1"}) {  // the second is a label of an address, as getifaddrs returns it
    const transport::Socket listener = transport::Socket::listen(address, name);
    const transport::Socket there = transport::Socket::connect(listener.local(), long_enough());
    EXPECT_TRUE(listener.accept(long_enough()).valid()) << name;
  }
}

// e1 has only the link-local address that the kernel gives every interface.
TEST(Interfaces, WithoutAConfiguredAddressAreNotUsed) {
  std::string reason, names, address, only;
  const auto names_of = [](const char* rule) {
    std::string text;
    for (const transport::Interface& one : transport::usable_interfaces(transport::InterfaceFilter(rule)))
      text += one.name + " ";
    return text;
  };
  std::thread([&] {
    if (::unshare(CLONE_NEWNET) != 0) reason = "network namespaces are not permitted here";
    else if (!in_shell("ip link set lo up && ip -4 addr flush dev lo && ip link add e0 type veth peer name e1 && "
                       "ip addr add fd77::1/64 dev e0 nodad && ip link set e1 up && ip link set e0 up && "
                       "ip addr add fe80::99/64 dev e1 nodad"))
      reason = "the tool ip cannot make a veth pair here";
    else {
      names = names_of("");
      address = transport::own_address(transport::InterfaceFilter("e")).host();
      only = names_of("=e1");
    }
  }).join();
  if (!reason.empty()) GTEST_SKIP() << reason;
  EXPECT_EQ(names, "e0 ");
  EXPECT_EQ(address, "fd77::1");
  EXPECT_EQ(only, "e1 ");  // the rule names it
}

TEST(UniqueIds, AreTextAndBytes) {
  const UniqueId made = local_id();
  EXPECT_EQ(UniqueId::parse(made.text()), made);
  EXPECT_EQ(UniqueId::from_bytes(made.bytes()), made);
  EXPECT_NE(made, local_id());
  EXPECT_FALSE(made.rank0_listens());
  const UniqueId by_hand = UniqueId::parse("[fe80::1]:29500", "job 7");
  EXPECT_EQ(by_hand.host(), "fe80::1");
  EXPECT_EQ(by_hand.port(), 29500);
  EXPECT_TRUE(by_hand.rank0_listens());
  EXPECT_EQ(UniqueId::parse(by_hand.text()), by_hand);
  EXPECT_EQ(UniqueId::parse("[fe80::1]:29500", "job 7"), by_hand);
  EXPECT_NE(UniqueId::parse("[fe80::1]:29500", "job 8"), by_hand);
  EXPECT_EQ(UniqueId::parse(UniqueId::parse("unix:a name").text()).host(), "unix:a name");
  EXPECT_FALSE(UniqueId().valid());
}

TEST(UniqueIds, RefuseWhatIsNone) {
  for (const char* text : {"", "host", "host:", "host:0", "host:65536", "host:x", ":1", "::1:5", "unix:", "h:1/12",
                           "h:1/0123456789abcdeg", "h:1/0123456789abcdef/1"})
    EXPECT_TRUE(fails([&] { static_cast<void>(UniqueId::parse(text)); }, ErrorCode::kInvalidValue, {text})) << text;
  EXPECT_TRUE(fails([] { static_cast<void>(UniqueId::parse(std::string(200, 'h') + ":1")); }, ErrorCode::kInvalidValue,
                    {"200 characters"}));
  const std::array<std::byte, UniqueId::kBytes> zeros{};
  EXPECT_TRUE(fails([&] { static_cast<void>(UniqueId::from_bytes(zeros)); }, ErrorCode::kInvalidValue));
}

}  // namespace
}  // namespace slip::test::test_sockets
