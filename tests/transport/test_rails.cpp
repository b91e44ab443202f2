// Which interfaces of a host are rails, how the rails of two hosts are paired, and sockets that are bound to one.
#include <gtest/gtest.h>

#include "net_ends.hpp"
#include "support/errors.hpp"
#include "transport/net/rails.hpp"
#include "transport/net/tcp.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test_rails {
namespace {

using transport::choose_rails;
using transport::InterfaceFilter;
using transport::pair_rails;
using transport::Rail;
using transport::RailCandidate;
using transport::RailPath;
using transport::RailRequest;
using transport::resolve;
using transport::SocketAddress;
using transport::Stripes;

RailCandidate candidate(const std::string& name, const std::string& address, int mbps = 0,
                        const std::string& bus_id = "", int bits = 24) {
  return {{name, resolve(address, 0).front(), bits}, {mbps, bus_id}};
}

std::string names(const std::vector<Rail>& rails) {
  std::string text;
  for (const Rail& one : rails) text += (text.empty() ? "" : " ") + std::string(one.name());
  return text;
}

// A server: two fast ports, one that is slower, a bridge, and loopback.
const std::vector<RailCandidate> kServer = {
    candidate("lo", "127.0.0.1"),
    candidate("eth0", "10.0.0.1", 100'000, "0000:10:00.0"),
    candidate("eth1", "10.0.1.1", 100'000, "0000:20:00.0"),
    candidate("eth1", "fd00::1", 100'000, "0000:20:00.0", 64),
    candidate("mgmt", "10.0.2.1", 10'000, "0000:30:00.0"),
    candidate("br-0", "10.0.3.1", 100'000),
};

std::string rails_of(const std::string& rule, const std::string& control, std::vector<transport::Nic> nics = {}) {
  return names(choose_rails(kServer, {InterfaceFilter(rule), resolve(control, 0).front(), std::move(nics)}));
}

TEST(ChooseRails, WithoutARuleThoseAsFastAsTheFirst) {
  EXPECT_EQ(rails_of("", "10.0.0.1"), "eth0 eth1");
  EXPECT_EQ(rails_of("", "10.0.1.1"), "eth0 eth1");
  EXPECT_EQ(rails_of("", "10.0.2.1"), "");   // alone: nothing is bound
  EXPECT_EQ(rails_of("", "10.0.3.1"), "");   // a bridge is not on a bus
  EXPECT_EQ(rails_of("", "127.0.0.1"), "");  // all ranks are on this host
  EXPECT_EQ(rails_of("", "192.0.2.9"), "");  // of no interface
}

TEST(ChooseRails, ARuleDecides) {
  EXPECT_EQ(rails_of("eth", "10.0.0.1"), "eth0 eth1");
  EXPECT_EQ(rails_of("=eth0,br-0", "10.0.0.1"), "eth0 br-0");
  EXPECT_EQ(rails_of("^mgmt", "10.0.0.1"), "eth0 eth1 br-0");
  EXPECT_EQ(rails_of("=eth0", "10.0.0.1"), "");
  EXPECT_EQ(rails_of("eth", "fd00::1"), "");  // only eth1 has an address of this family
}

TEST(ChooseRails, SlowOnesThatWouldDelayTheOthersAreLeftOut) {
  EXPECT_EQ(rails_of("=eth0,eth1,mgmt", "10.0.0.1"), "eth0 eth1");
  EXPECT_EQ(rails_of("=eth0,mgmt", "10.0.2.1"), "eth0");  // 100 Gbit/s, instead of twice 10
  const std::vector<RailCandidate> uneven = {candidate("a", "10.0.0.1", 25'000), candidate("b", "10.0.1.1", 20'000),
                                             candidate("c", "10.0.2.1")};
  EXPECT_EQ(names(choose_rails(uneven, {InterfaceFilter("^x"), resolve("10.0.0.1", 0).front(), {}})), "a b c");
}

TEST(ChooseRails, TheTopologyNamesThemByNameOrBus) {
  EXPECT_EQ(rails_of("", "10.0.2.1", {{"eth1", ""}, {"mlx5_0", "0000:10:00.0"}}), "eth0 eth1");
  EXPECT_EQ(rails_of("", "10.0.2.1", {{"eth1", ""}}), "eth1");  // the only one, but not the one of the bootstrap
  EXPECT_EQ(rails_of("", "10.0.0.1", {{"tcp", ""}}), "eth0 eth1");
  EXPECT_EQ(rails_of("=br-0,eth0", "10.0.0.1", {{"eth1", ""}}), "eth0 br-0");  // a rule has priority
}

TEST(ChooseRails, NoMoreThanARankCanSend) {
  std::vector<RailCandidate> many;
  for (int i = 0; i < 12; ++i) many.push_back(candidate(fmt::format("e{}", i), fmt::format("10.0.{}.1", i)));
  EXPECT_EQ(choose_rails(many, {InterfaceFilter("e"), resolve("10.0.0.1", 0).front(), {}}).size(),
            transport::kMaxRails);
}

Rail rail(const std::string& name, const std::string& address, int bits = 24) {
  return {{name, resolve(address, 0).front(), bits}, 0};
}

std::string pairs(const std::vector<Rail>& local, const std::vector<Rail>& remote) {
  std::string text;
  for (const RailPath& one : pair_rails(local, remote))
    text += fmt::format("{}{}-{}", text.empty() ? "" : " ", one.local.name(), one.remote.name());
  return text;
}

TEST(PairRails, OneSubnetComesFirst) {
  const std::vector<Rail> here = {rail("a", "10.0.0.1"), rail("b", "10.0.1.1")};
  EXPECT_EQ(pairs(here, {rail("a", "10.0.1.2"), rail("b", "10.0.0.2")}), "a-b b-a");
  EXPECT_EQ(pairs(here, {rail("b", "10.0.1.2")}), "b-b");
  EXPECT_EQ(pairs(here, {}), "");
  // All in one subnet: in order.
  EXPECT_EQ(pairs({rail("a", "10.0.0.1"), rail("b", "10.0.0.2")}, {rail("c", "10.0.0.3"), rail("d", "10.0.0.4")}),
            "a-c b-d");
}

TEST(PairRails, RoutedOnesByNameThenByNumber) {
  const std::vector<Rail> here = {rail("a", "10.0.0.1", 31), rail("b", "10.0.0.3", 31)};
  EXPECT_EQ(pairs(here, {rail("b", "10.9.0.1", 31), rail("a", "10.9.0.3", 31)}), "a-a b-b");
  EXPECT_EQ(pairs(here, {rail("x", "10.9.0.1", 31), rail("y", "10.9.0.3", 31)}), "a-x b-y");
  EXPECT_EQ(pairs(here, {rail("x", "fd00::2", 64)}), "");
}

TEST(PairRails, NoneWithinAHost) {
  const std::vector<Rail> here = {rail("a", "10.0.0.1"), rail("b", "10.0.1.1")};
  EXPECT_EQ(pairs(here, here), "");
}

TEST(SameSubnet, ComparesThePrefix) {
  const auto at = [](const char* text) { return resolve(text, 0).front(); };
  EXPECT_TRUE(at("10.1.2.3").same_subnet(at("10.1.2.200"), 24));
  EXPECT_FALSE(at("10.1.2.3").same_subnet(at("10.1.3.3"), 24));
  EXPECT_TRUE(at("10.1.2.3").same_subnet(at("10.1.3.3"), 23));
  EXPECT_TRUE(at("10.1.2.3").same_subnet(at("192.0.2.1"), 0));
  EXPECT_TRUE(at("fd00:1::1").same_subnet(at("fd00:1::2"), 64));
  EXPECT_FALSE(at("fd00:1::1").same_subnet(at("fd00:2::1"), 32));
  EXPECT_FALSE(at("10.1.2.3").same_subnet(at("fd00::1"), 0));
}

// Every byte of a message is on one socket, all sockets carry about the same, and pieces follow each other.
TEST(Stripes, DivideIntoEqualParts) {
  for (const std::size_t sockets : {2U, 3U, 16U}) {
    const Stripes stripes{sockets, 128 << 10};
    for (const std::size_t total :
         {1UL, 64UL << 10, (64UL << 10) + 1, 384UL << 10, 512UL << 10, 1'000'003UL, 9UL << 20}) {
      SCOPED_TRACE(testing::Message() << total << " bytes over " << sockets);
      std::vector<int> carried(total, 0);
      std::size_t max = 0, min = total;
      for (std::size_t i = 0; i < sockets; ++i) {
        const std::size_t own = stripes.on(i, total);
        max = std::max(max, own);
        min = std::min(min, own);
        for (std::size_t done = 0; done < own;) {
          const Stripes::Piece piece = stripes.piece(i, total, done);
          ASSERT_GT(piece.bytes, 0U);
          ASSERT_LE(piece.offset + piece.bytes, total);
          for (std::size_t at = 0; at < piece.bytes; ++at) ++carried[piece.offset + at];
          done += piece.bytes;
        }
      }
      EXPECT_EQ(std::count(carried.begin(), carried.end(), 1), static_cast<std::ptrdiff_t>(total));
      if (total <= 64 << 10) EXPECT_EQ(stripes.on(0, total), total);
      else EXPECT_LE(max - min, sockets * 64 * (total / (sockets * (128 << 10)) + 1));
    }
  }
}

RailPath loopback_path(const Rail& listening, const std::string& interface = "lo") {
  RailPath path{listening, listening};
  path.local = rail(interface, "127.0.0.1", 8);
  return path;
}

TEST(BoundSockets, CarryMessages) {
  transport::NetOptions options = test::local_options(0);
  options.rails = {rail("lo", "127.0.0.2", 8), rail("lo", "127.0.0.1", 8)};
  const auto listener = transport::net_tcp().listen(options);
  ASSERT_EQ(listener->rails().size(), 2U);
  options.rank = 1;
  options.sockets = 2;
  options.paths = {loopback_path(listener->rails()[0]), loopback_path(listener->rails()[1])};
  options.lost_path = [](const RailPath&, const std::string& why) { ADD_FAILURE() << why; };
  const auto sender = transport::net_tcp().connect(listener->handle(), options, test::long_deadline());
  const auto receiver = listener->accept(test::long_deadline());
  std::vector<pollfd> sockets;
  sender->watch(sockets);
  EXPECT_EQ(sockets.size(), 4U);  // two on each path
  test::Memory out(*sender, 3 << 20), in(*receiver, 3 << 20);
  out.fill(5);
  test::finish(*sender, sender->isend(out.part()), *receiver, test::irecv(*receiver, in.part()));
  EXPECT_EQ(out.bytes, in.bytes);
  sender->check();  // nothing is cut
}

// The paths that fail are named with the reason; the connection uses the others, or the handle's address.
TEST(BoundSockets, APathThatFailsIsLeftOut) {
  transport::NetOptions options = test::local_options(0);
  options.rails = {rail("lo", "127.0.0.2", 8)};
  const auto listener = transport::net_tcp().listen(options);
  std::vector<std::string> lost;
  options.lost_path = [&](const RailPath& path, const std::string& why) { lost.push_back(path.text() + ": " + why); };
  RailPath foreign = loopback_path(listener->rails()[0]), refused = foreign;
  foreign.local = rail("lo", "192.0.2.7");  // not an address of this host
  refused.remote.address.port = 1;          // nobody listens there
  const RailPath missing = loopback_path(listener->rails()[0], "slip-none");
  for (const bool one_works : {true, false}) {
    lost.clear();
    options.paths = {foreign, refused, missing};
    if (one_works) options.paths.push_back(loopback_path(listener->rails()[0]));
    const auto sender = transport::net_tcp().connect(listener->handle(), options, test::long_deadline());
    const auto receiver = listener->accept(test::long_deadline());
    ASSERT_EQ(lost.size(), 3U);
    EXPECT_NE(lost[0].find("lo (192.0.2.7) to 127.0.0.2: cannot connect to 127.0.0.2"), std::string::npos) << lost[0];
    EXPECT_NE(lost[1].find("refused"), std::string::npos) << lost[1];
    EXPECT_NE(lost[2].find("slip-none (127.0.0.1)"), std::string::npos) << lost[2];
    test::Memory out(*sender, 1000), in(*receiver, 1000);
    out.fill(7);
    test::finish(*sender, sender->isend(out.part()), *receiver, test::irecv(*receiver, in.part()));
    EXPECT_EQ(out.bytes, in.bytes);
  }
}

// A peer that reads nothing is not cut off: its kernel acknowledges, also with a full buffer.
TEST(BoundSockets, APeerThatDoesNotReadIsNotCutOff) {
  transport::NetOptions options = test::local_options(0);
  options.rails = {rail("lo", "127.0.0.2", 8)};
  const auto listener = transport::net_tcp().listen(options);
  options.paths = {loopback_path(listener->rails()[0])};
  options.silence_ns = 300'000'000;
  const auto sender = transport::net_tcp().connect(listener->handle(), options, test::long_deadline());
  const auto receiver = listener->accept(test::long_deadline());
  test::Memory out(*sender, 64 << 20);
  transport::NetRequest* const request = sender->isend(out.part());
  for (int idle = 0; idle < 1000;) idle = sender->progress() ? 0 : idle + 1;
  EXPECT_FALSE(request->done);
  for (int i = 0; i < 10; ++i) {
    EXPECT_NO_THROW(sender->check());
    static_cast<void>(transport::wait_a_moment(100'000'000, test::long_deadline()));
  }
}

}  // namespace
}  // namespace slip::test_rails
