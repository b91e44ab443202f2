// Bootstraps between threads of one process: what they do, and which rank an error names.
#include <numeric>

#include "base/clock.hpp"
#include "support/errors.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"
#include "transport/bootstrap/rendezvous.hpp"

namespace slip::test::test_bootstrap {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Bootstraps, GatherInOrderOfRanks) {
  for (const int nranks : {1, 2, 3, 8}) {
    const UniqueId id = local_id();
    expect_no_errors(as_ranks(nranks, [&](int rank) {
      transport::Bootstrap bootstrap(id, nranks, rank, within(seconds(30)));
      for (int round = 0; round < 5; ++round) {
        const std::vector<int> table = bootstrap.all_gather(rank * 100 + round);
        for (int other = 0; other < nranks; ++other)
          EXPECT_EQ(table[static_cast<std::size_t>(other)], other * 100 + round);
        bootstrap.barrier();
      }
      EXPECT_FALSE(bootstrap.broken());
      EXPECT_FALSE(bootstrap.failures().first_loss());
    }));
  }
}

TEST(Bootstraps, KnowWhereEachRankIs) {
  const UniqueId id = local_id();
  expect_no_errors(as_ranks(3, [&](int rank) {
    const transport::Bootstrap bootstrap(id, 3, rank, within(seconds(30)));
    for (const transport::Placement& other : bootstrap.placements()) {
      EXPECT_TRUE(transport::same_process(other, transport::Placement::own()));
      EXPECT_EQ(other.pid, ::getpid());
      EXPECT_NE(other.boot, 0U);
    }
  }));
}

TEST(Bootstraps, DistinguishProcessesAndHosts) {
  const transport::Placement here = transport::Placement::own();
  transport::Placement other = here;
  other.pid += 1;
  EXPECT_FALSE(transport::same_process(here, other));
  EXPECT_TRUE(transport::same_host(here, other));
  other = here;
  other.started += 1;  // the pid was used again
  EXPECT_FALSE(transport::same_process(here, other));
  other = here;
  other.net_space += 1;
  EXPECT_TRUE(transport::same_host(here, other));
  EXPECT_FALSE(transport::share_memory(here, other));
  other.boot += 1;
  EXPECT_FALSE(transport::same_host(here, other));
}

TEST(Bootstraps, KeepMessagesUntilTheirTagIsAsked) {
  const UniqueId id = local_id();
  expect_no_errors(as_ranks(4, [&](int rank) {
    transport::Bootstrap bootstrap(id, 4, rank, within(seconds(30)));
    for (int to = 0; to < 4; ++to) {
      for (std::uint64_t tag = 0; tag < 3; ++tag) {
        bootstrap.send(to, tag, as_bytes("first " + std::to_string(rank * 10 + static_cast<int>(tag))));
        bootstrap.send(to, tag, as_bytes("second"));
      }
    }
    for (int from = 3; from >= 0; --from) {
      for (std::uint64_t tag = 3; tag-- > 0;) {
        EXPECT_EQ(as_text(bootstrap.recv(from, tag)), "first " + std::to_string(from * 10 + static_cast<int>(tag)));
        EXPECT_EQ(as_text(bootstrap.recv(from, tag)), "second");
      }
    }
    bootstrap.send((rank + 1) % 4, 9, {});
    EXPECT_TRUE(bootstrap.recv((rank + 3) % 4, 9).empty());
  }));
}

TEST(Bootstraps, SendMoreThanTheSystemBuffers) {
  const UniqueId id = local_id();
  const std::string large(16 << 20, 'x');
  // Under the thread sanitizer, beside other jobs, the hash of so many bytes takes seconds.
  transport::BootstrapOptions options = within(seconds(120));
  options.heartbeat.silence = seconds(60);
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::Bootstrap bootstrap(id, 2, rank, options);
    bootstrap.send(1 - rank, 1, as_bytes(large));
    EXPECT_EQ(as_text(bootstrap.recv(1 - rank, 1)), large);
  }));
}

TEST(Bootstraps, RunOverIpv6AndUnixNames) {
  const UniqueId six = local_id("::1");
  EXPECT_EQ(six.host(), "::1");
  const UniqueId name = UniqueId::parse("unix:slip-test-" + std::to_string(::getpid()));
  for (const UniqueId& id : {six, name, name}) {  // an address given by hand can be used again
    expect_no_errors(as_ranks(4, [&](int rank) {
      transport::Bootstrap bootstrap(id, 4, rank, within(seconds(30)));
      EXPECT_EQ(bootstrap.all_gather(rank)[3], 3);
      bootstrap.send((rank + 1) % 4, 1, as_bytes("hello"));
      EXPECT_EQ(as_text(bootstrap.recv((rank + 3) % 4, 1)), "hello");
    }));
  }
}

TEST(Bootstraps, SeveralInOneProcessDoNotMix) {
  const UniqueId a = local_id(), b = local_id();
  expect_no_errors(as_ranks(6, [&](int i) {
    const int rank = i / 2;
    transport::Bootstrap bootstrap(i % 2 == 0 ? a : b, 3, rank, within(seconds(30)));
    const std::vector<int> table = bootstrap.all_gather(i);
    for (const int other : table) EXPECT_EQ(other % 2, i % 2);
  }));
}

TEST(BootstrapDeadlines, NameRankZeroWhenItDoesNotListen) {
  const UniqueId id = UniqueId::parse("unix:slip-nobody-" + std::to_string(::getpid()));
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 2, 1, within(milliseconds(100))); }, ErrorCode::kTimeout,
                    {"rank 1 of 2", "rank 0", "unix:slip-nobody"}));
}

TEST(BootstrapDeadlines, SayThatAnIdServesOnce) {
  const UniqueId id = local_id();
  { const transport::Bootstrap alone(id, 1, 0, within(seconds(30))); }
  EXPECT_TRUE(
      fails([&] { transport::Bootstrap again(id, 1, 0, within(seconds(30))); }, ErrorCode::kIo, {"an id serves once"}));
}

TEST(BootstrapDeadlines, NameTheRanksThatHaveNotJoined) {
  const UniqueId id = local_id();
  const std::vector<Met> met = as_ranks(5, [&](int rank) {
    transport::Bootstrap bootstrap(id, 5, rank, within(seconds(30)));
    if (rank == 1 || rank == 3) {  // started, but busy: it waits until rank 0 has given up
      static_cast<void>(bootstrap.recv(0, 1));
    } else if (rank != 0) {  // joins, says so, and stays
      EXPECT_TRUE(fails([&] { bootstrap.barrier(bootstrap.begin(transport::SetupKind::kOther, milliseconds(1))); },
                        ErrorCode::kTimeout, {"joined all-gather 2"}));
      bootstrap.send(0, 2, {});
      static_cast<void>(bootstrap.recv(0, 1));
    } else {
      for (const int other : {2, 4}) static_cast<void>(bootstrap.recv(other, 2));
      EXPECT_TRUE(fails([&] { bootstrap.barrier(bootstrap.begin(transport::SetupKind::kOther, seconds(1))); },
                        ErrorCode::kTimeout, {"ranks 1 and 3 have not joined all-gather 2"}));
      for (const int other : {1, 2, 3, 4}) bootstrap.send(other, 1, {});
    }
  });
  expect_no_errors(met);
}

TEST(BootstrapDeadlines, NameTheMessageThatDidNotCome) {
  const UniqueId id = local_id();
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::Bootstrap bootstrap(id, 2, rank, within(seconds(30)));
    const int other = 1 - rank;
    bootstrap.send(other, 7, {});
    bootstrap.send(other, 6, {});
    static_cast<void>(bootstrap.recv(other, 6));  // the one before it has also arrived
    EXPECT_TRUE(fails(
        [&] {
          static_cast<void>(bootstrap.recv(other, 8, bootstrap.begin(transport::SetupKind::kOther, milliseconds(10))));
        },
        ErrorCode::kTimeout, {"rank " + std::to_string(other) + " sent nothing with tag 8", "there are tags 7"}));
    bootstrap.barrier();
  }));
}

TEST(BootstrapMistakes, OneRankTwiceFailsOnAllRanks) {
  const UniqueId id = local_id();
  const int claimed[] = {0, 2, 2, 3};
  for (const Met& one :
       as_ranks(4, [&](int i) { transport::Bootstrap bootstrap(id, 4, claimed[i], within(seconds(30))); })) {
    EXPECT_EQ(one.code, ErrorCode::kInvalidValue) << one.text;
    EXPECT_NE(one.text.find("rank 2 of 4 is claimed twice: by process " + std::to_string(::getpid())),
              std::string::npos)
        << one.text;
  }
}

TEST(BootstrapMistakes, DifferentCountsFailOnAllRanks) {
  const UniqueId id = local_id();
  for (const Met& one : as_ranks(
           3, [&](int rank) { transport::Bootstrap bootstrap(id, rank == 1 ? 4 : 3, rank, within(seconds(30))); })) {
    EXPECT_EQ(one.code, ErrorCode::kInvalidValue) << one.text;
    EXPECT_NE(one.text.find("there are 4"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("there are 3"), std::string::npos) << one.text;
  }
}

TEST(BootstrapMistakes, AnInvalidRankFailsOnAllRanks) {
  const UniqueId id = local_id();
  for (const Met& one : as_ranks(
           3, [&](int rank) { transport::Bootstrap bootstrap(id, 3, rank == 1 ? 3 : rank, within(seconds(30))); })) {
    EXPECT_EQ(one.code, ErrorCode::kInvalidValue) << one.text;
    EXPECT_NE(one.text.find("rank 3 of 3: ranks are 0 to 2"), std::string::npos) << one.text;
  }
}

TEST(BootstrapMistakes, APortThatIsInUseIsNamed) {
  const transport::Socket held = transport::Socket::listen(transport::SocketAddress::loopback(AF_INET));
  const UniqueId id = transport::UniqueIdParts{"127.0.0.1", held.local().port(), transport::random_secret(), true}.id();
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 2, 0, within(seconds(30))); }, ErrorCode::kIo,
                    {"rank 0 of 2", held.local().text(), "in use", "set SLIP_ID to another port"}));
}

TEST(BootstrapMistakes, CallsThatDoNotMatch) {
  const UniqueId id = local_id();
  for (const Met& one : as_ranks(2, [&](int rank) {
         transport::Bootstrap bootstrap(id, 2, rank, within(seconds(30)));
         if (rank == 0) static_cast<void>(bootstrap.all_gather(std::int64_t{1}));
         else static_cast<void>(bootstrap.all_gather(1));
       })) {
    EXPECT_EQ(one.code, ErrorCode::kInvalidValue) << one.text;
    EXPECT_NE(one.text.find("the calls do not match"), std::string::npos) << one.text;
  }
}

TEST(BootstrapMistakes, ARankThatLeftIsNotWaitedFor) {
  const UniqueId id = local_id();
  const std::vector<Met> met = as_ranks(4, [&](int rank) {
    transport::Bootstrap bootstrap(id, 4, rank, within(seconds(60)));
    if (rank == 2) return;
    if (rank == 0) static_cast<void>(bootstrap.recv(2, 5));
    else bootstrap.barrier();
  });
  EXPECT_FALSE(met[2].code) << met[2].text;
  for (const int rank : {0, 1, 3}) {
    const Met& one = met[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.code, ErrorCode::kRankLost) << one.text;
    EXPECT_NE(one.text.find("has left"), std::string::npos) << one.text;
  }
}

TEST(BootstrapAborts, EndTheWaitsOfAllRanks) {
  const UniqueId id = local_id();
  const std::vector<Met> met = as_ranks(4, [&](int rank) {
    transport::Bootstrap bootstrap(id, 4, rank, within(seconds(60)));
    std::thread aborter([&] {
      if (rank == 1) bootstrap.abort();
    });
    try {
      static_cast<void>(bootstrap.recv((rank + 1) % 4, 1));
    } catch (const Error&) {
      aborter.join();
      throw;
    }
  });
  for (int rank = 0; rank < 4; ++rank) {
    const Met& one = met[static_cast<std::size_t>(rank)];
    EXPECT_EQ(one.code, ErrorCode::kAborted) << one.text;
    EXPECT_NE(one.text.find(rank == 1 ? "from another thread" : "rank 1 aborted"), std::string::npos) << one.text;
  }
}

// The notification that a rank aborted must arrive before its goodbye.
TEST(BootstrapAborts, AreSentByARankThatLeavesAtOnce) {
  for (unsigned round = 0; round < 200 / kShare; ++round) {
    const UniqueId id = local_id();
    const std::vector<Met> met = as_ranks(3, [&](int rank) {
      transport::Bootstrap bootstrap(id, 3, rank, within(seconds(20)));
      if (rank == 1) bootstrap.abort();
      else static_cast<void>(bootstrap.recv(2 - rank, 1));
    });
    for (const int rank : {0, 2}) {
      const Met& one = met[static_cast<std::size_t>(rank)];
      ASSERT_EQ(one.code, ErrorCode::kAborted) << one.text;
      EXPECT_NE(one.text.find("rank 1 aborted"), std::string::npos) << one.text;
    }
  }
}

TEST(BootstrapAborts, EndTheConstructor) {
  const UniqueId id = local_id();
  transport::BootstrapOptions options = within(seconds(60));
  options.abort = std::make_shared<transport::AbortFlag>();
  std::thread aborter([&] { options.abort->set(); });
  EXPECT_TRUE(fails([&] { transport::Bootstrap bootstrap(id, 2, 0, options); }, ErrorCode::kAborted));
  aborter.join();
}

}  // namespace
}  // namespace slip::test::test_bootstrap
