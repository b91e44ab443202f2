// Processes that do not belong to the job: other users of the host, and many connections that say nothing.
#include <sys/resource.h>
#include <sys/un.h>

#include <cstring>
#include <optional>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "support/errors.hpp"
#include "support/forked.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/net/net.hpp"
#include "transport/net/tcp.hpp"

namespace slip::test::test_other_users {
namespace {

using std::chrono::seconds;

transport::Deadline long_enough() { return {base::deadline_after(20'000'000'000), nullptr}; }

constexpr uid_t kNobody = 65534;

UniqueId name_of(const std::string& what) {
  return UniqueId::parse("unix:slip-test-" + what + "-" + std::to_string(::getpid()));
}
transport::SocketAddress place_of(const UniqueId& id) {
  return transport::SocketAddress::unix_name(id.host().substr(5));
}

// Another user has bound the name before rank 0 started: ranks send it nothing and do not trust it.
TEST(OtherUsers, ThatListenAreNotBelieved) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const UniqueId id = name_of("taken");
  const Child other([&]() -> std::string {
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return "cannot be another user";
    const transport::Socket listener = transport::Socket::listen(place_of(id));
    const transport::Socket connection = listener.accept(long_enough());
    std::byte byte{};
    try {
      connection.recv({&byte, 1}, long_enough());
    } catch (const Error&) {
      return "heard nothing";
    }
    return "heard something";
  });
  // Until the other process listens, rank 1 assumes that rank 0 has not started yet.
  EXPECT_TRUE(fails([&] { const transport::Bootstrap bootstrap(id, 2, 1, within(seconds(60))); },
                    ErrorCode::kInvalidValue, {"a process of another user listens"}));
  EXPECT_EQ(other.report(), "heard nothing");
}

TEST(OtherUsers, ThatConnectAreSentAway) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const UniqueId id = name_of("ours");
  expect_no_errors(as_ranks(2, [&](int rank) {
    if (rank == 1) {
      const Child other([&]() -> std::string {
        if (::setresuid(kNobody, kNobody, kNobody) != 0) return "cannot be another user";
        std::byte byte{};
        std::optional<transport::Socket> connection;
        for (const transport::Deadline deadline = long_enough(); !connection && base::now_ns() < deadline.at_ns;) {
          try {
            connection = transport::Socket::connect(place_of(id), deadline);
          } catch (const Error&) {  // rank 0 does not listen yet
            base::yield_thread();
          }
        }
        if (!connection) return "found no listener";
        try {
          connection->recv({&byte, 1}, long_enough());
        } catch (const Error& error) {
          return error.code() == ErrorCode::kIo ? "sent away" : error.what();
        }
        return "heard something";
      });
      EXPECT_EQ(other.report(), "sent away");
    }
    transport::Bootstrap bootstrap(id, 2, rank, within(seconds(30)));
    bootstrap.barrier();
  }));
}

// A rank with few descriptors, which reports to the test where it listens, and works when the test has connected there.
SLIP_CHILD(SilentConnections, Rank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    const rlimit few{128, 128};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return "cannot set the limit";
    transport::Bootstrap bootstrap(info.id, info.nranks, info.rank, within(seconds(60)));
    transport::NetOptions options;
    options.rank = info.rank;
    options.host = "127.0.0.1";
    options.key = bootstrap.derive("test");
    const std::unique_ptr<transport::NetListener> listener = transport::net_tcp().listen(options);
    transport::TcpHandle handle;
    std::memcpy(&handle, listener->handle().data(), sizeof(handle));
    const std::uint16_t ports[2] = {bootstrap.address(info.rank).port(),
                                    transport::SocketAddress(handle.address).port()};
    static_cast<void>(!::write(kLine, ports, sizeof(ports)));
    char byte = 0;
    static_cast<void>(!::read(kLine, &byte, 1));
    // A rank accepts connections whenever it polls.
    static_cast<void>(listener->accept(nullptr));
    bootstrap.barrier();
    for (int i = 0; i < 32; ++i) {
      if (::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) return "no descriptors are left for the job";
    }
    const std::vector<transport::NetHandle> handles = bootstrap.all_gather(listener->handle());
    const auto other = static_cast<std::size_t>(1 - info.rank);
    const auto sender = transport::net_tcp().connect(handles[other], options, long_enough());
    const auto receiver = listener->accept(long_enough());
    bootstrap.send(1 - info.rank, 1, {});
    static_cast<void>(bootstrap.recv(1 - info.rank, 1));
    return receiver->peer().rank == 1 - info.rank ? "went on" : "the line is another's";
  });
}

TEST(SilentConnections, LeaveTheJobItsDescriptors) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back("SilentConnections.Rank", id, 2, rank);
  std::vector<transport::Socket> connections;
  for (const RankProcess& rank : ranks) {
    const std::string words = rank.hear(2 * sizeof(std::uint16_t));
    std::uint16_t ports[2] = {};
    ASSERT_EQ(words.size(), sizeof(ports)) << words;
    std::memcpy(ports, words.data(), sizeof(ports));
    for (const std::uint16_t port : ports) {
      for (int i = 0; i < 200; ++i)
        connections.push_back(
            transport::Socket::connect(transport::SocketAddress::loopback(AF_INET, port), long_enough()));
    }
  }
  for (const RankProcess& rank : ranks) rank.send('x');
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "went on");
}

}  // namespace
}  // namespace slip::test::test_other_users
