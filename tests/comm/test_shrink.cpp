// After a loss the remaining ranks continue with a smaller communicator.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>

#include "base/clock.hpp"
#include "sums.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"
#include "transport/bootstrap/frame.hpp"

namespace slip::test_shrink {
namespace {

// A rank ends itself when it is about to send this notification that shrink is done, counted from 1; 0: it does not.
std::atomic<int> g_notifications_left{0};

// Whether these bytes are such a notification. See transport/bootstrap/recovery.cpp.
bool says_success(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kVerdictTag = 0x5e1ea7e6;
  constexpr std::uint32_t kDone = 1;
  struct Verdict {
    std::uint64_t turn = 0;
    std::uint32_t verdict = 0;
  };
  for (; bytes.size() >= sizeof(transport::FrameHeader) + sizeof(Verdict); bytes = bytes.subspan(1)) {
    transport::FrameHeader header;
    Verdict verdict;
    std::memcpy(&header, bytes.data(), sizeof(header));
    std::memcpy(&verdict, bytes.data() + sizeof(header), sizeof(verdict));
    if (header.kind == transport::FrameKind::kMessage && header.tag == kVerdictTag && verdict.verdict == kDone)
      return true;
  }
  return false;
}

}  // namespace
}  // namespace slip::test_shrink

// Replaces the C library's function in this program, so that a rank can end just before it sends.
extern "C" ssize_t send(int socket, const void* data, std::size_t bytes, int flags) {
  static const auto real =
      reinterpret_cast<ssize_t (*)(int, const void*, std::size_t, int)>(::dlsym(RTLD_NEXT, "send"));
  if (slip::test_shrink::g_notifications_left > 0 &&
      slip::test_shrink::says_success({static_cast<const std::byte*>(data), bytes}) &&
      --slip::test_shrink::g_notifications_left == 0)
    ::raise(SIGKILL);
  return real(socket, data, bytes, flags);
}

namespace slip::test_shrink {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Adder;
using test::as_ranks;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::RankProcess;

CommunicatorOptions long_timeouts() {
  CommunicatorOptions options;
  options.init_timeout = seconds(40);
  options.silence = seconds(30);  // only what ends counts: a busy machine is no loss
  return options;
}

CommunicatorOptions short_beats() {
  CommunicatorOptions options = long_timeouts();
  options.heartbeat = milliseconds(100);
  options.silence = milliseconds(1500);
  return options;
}

// What the test sends each rank before it begins.
struct Orders {
  std::uint8_t left = 0;           // how many ranks there are in the end
  std::uint8_t killed_in = 0;      // ends itself in this call; 0: does not
  std::uint8_t killed_after = 0;   // ends a few times 100 us after it has learnt of the first loss
  std::uint8_t notifications = 0;  // ends before it notifies so many ranks that the first shrink is done
  bool ends() const { return killed_in != 0 || killed_after != 0 || notifications != 0; }
};

Orders hear_orders() {
  Orders orders;
  for (std::uint8_t* byte : {&orders.left, &orders.killed_in, &orders.killed_after, &orders.notifications}) {
    if (::read(test::kLine, byte, 1) != 1) throw std::runtime_error("no orders");
  }
  return orders;
}

void send_orders(const RankProcess& rank, const Orders& orders) {
  for (const std::uint8_t byte : {orders.left, orders.killed_in, orders.killed_after, orders.notifications})
    rank.send(static_cast<char>(byte));
}

void end_in(int microseconds) {
  const itimerval time{{0, 0}, {0, microseconds}};
  ::signal(SIGALRM, SIG_DFL);
  ::setitimer(ITIMER_REAL, &time, nullptr);
}

// Adds with the others; after each loss with the remaining ranks, until as many are left as expected.
std::string add_with_the_remaining_ranks(const transport::LaunchInfo& info, const Orders& orders) {
  const Adder adder;
  std::optional<Communicator> comm(
      Communicator::init(info.id, info.nranks, info.rank, adder.device(), long_timeouts()));
  std::optional<Adder> work(adder.device());
  int good = 0;
  for (unsigned call = 1; comm->nranks() != orders.left || good < 20; ++call) {
    if (call == 10'000) return fmt::format("there are still {} ranks", comm->nranks());
    try {
      const std::size_t elements = good % 2 == 0 ? 100'000 : 10;
      if (call == orders.killed_in) {
        const Buffer data = work->start_sum(*comm, elements);
        ::raise(SIGKILL);
      }
      const std::string wrong = work->wrong_sum(*comm, elements);
      if (!wrong.empty()) return wrong;
      ++good;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kRankLost) return error.what();
      if (orders.killed_in != 0) ::raise(SIGKILL);  // another one was quicker
      if (orders.killed_after != 0) end_in(orders.killed_after * 100);
      g_notifications_left = orders.notifications;
      comm.emplace(comm->shrink());
      work.emplace(adder.device());  // a stream that has failed stays so
      good = 0;
    }
  }
  return fmt::format("rank {} of {}", comm->rank(), comm->nranks());
}

SLIP_CHILD(Shrink, AddWithTheRemainingRanks) {
  test::play([](const transport::LaunchInfo& info) { return add_with_the_remaining_ranks(info, hear_orders()); });
}

// Starts four ranks and returns what they report.
std::vector<std::string> run_four(const std::vector<Orders>& orders) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.emplace_back("Shrink.AddWithTheRemainingRanks", id, 4, rank);
  for (std::size_t rank = 0; rank < 4; ++rank) send_orders(ranks[rank], orders[rank]);
  std::vector<std::string> reports;
  for (const RankProcess& rank : ranks) reports.push_back(rank.report());
  return reports;
}

void expect_survivors(const std::vector<Orders>& orders) {
  const std::vector<std::string> reports = run_four(orders);
  int next = 0;
  for (std::size_t rank = 0; rank < 4; ++rank) {
    const std::string expected = orders[rank].ends() ? "" : fmt::format("rank {} of {}", next++, orders[rank].left);
    EXPECT_EQ(reports[rank], expected) << "rank " << rank;
  }
}

unsigned seed() {
  const unsigned result = std::random_device{}();
  std::printf("seed %u\n", result);
  return result;
}

// Not the first: another rank may still be in init then, which is an error of its own.
std::uint8_t some_call(std::mt19937& random, unsigned max) { return static_cast<std::uint8_t>(2 + random() % max); }

TEST(Shrink, AfterOneOfFourWasKilled) {
  std::mt19937 random(seed());
  for (unsigned turn = 0; turn < 4 / test::kShare + 1; ++turn) {
    std::vector<Orders> orders(4, Orders{3});
    orders[turn == 0 ? 0 : random() % 4].killed_in = some_call(random, 60);
    expect_survivors(orders);
  }
}

TEST(Shrink, AfterTwoOfFourWereKilled) {
  std::mt19937 random(seed());
  for (unsigned turn = 0; turn < 4 / test::kShare + 1; ++turn) {
    std::vector<Orders> orders(4, Orders{2});
    const unsigned one = random() % 4, other = (one + 1 + random() % 3) % 4;
    const auto call = some_call(random, 60);
    orders[one].killed_in = orders[other].killed_in = call;  // both in the same call, or almost
    expect_survivors(orders);
  }
}

// The second one is lost while the others agree on how to go on without the first.
TEST(Shrink, WhileAnotherIsKilled) {
  std::mt19937 random(seed());
  for (unsigned turn = 0; turn < 10 / test::kShare + 1; ++turn) {
    std::vector<Orders> orders(4, Orders{2});
    const unsigned one = random() % 4, other = (one + 1 + random() % 3) % 4;
    orders[one].killed_in = some_call(random, 10);
    orders[other].killed_after = static_cast<std::uint8_t>(1 + random() % 120);
    SCOPED_TRACE(testing::Message() << "turn " << turn << ": rank " << one << ", then rank " << other << " after "
                                    << 100 * orders[other].killed_after << " us");
    expect_survivors(orders);
  }
}

// The lowest remaining rank leads the first shrink. It ends before it has notified any rank that shrink is done, or
// between two notifications: the notified ranks continue, and the others join them.
TEST(Shrink, WhileTheOneThatLeadsIsKilledBetweenTwoNotifications) {
  for (const std::size_t first : {0, 3}) {
    const std::size_t leads = first == 0 ? 1 : 0;
    for (const std::uint8_t notifications : {1, 2}) {
      SCOPED_TRACE(testing::Message() << "rank " << first << ", then rank " << leads << " before notification "
                                      << +notifications);
      std::vector<Orders> orders(4, Orders{2});
      orders[first].killed_in = 5;
      orders[leads].notifications = notifications;
      expect_survivors(orders);
    }
  }
}

SLIP_CHILD(Shrink, DownToOne) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    std::optional<Communicator> comm(
        Communicator::init(info.id, info.nranks, info.rank, adder.device(), long_timeouts()));
    for (;;) {
      const Adder work(adder.device());
      if (const std::string wrong = work.wrong_sum(*comm); !wrong.empty()) return wrong;
      if (comm->nranks() == 1) return "alone";
      if (comm->rank() == info.nranks - comm->nranks()) ::raise(SIGKILL);  // another place each time
      EXPECT_TRUE(fails(
          [&] {
            for (;;) static_cast<void>(work.wrong_sum(*comm));
          },
          ErrorCode::kRankLost));
      comm.emplace(comm->shrink());
    }
  });
}

TEST(Shrink, AgainAndAgainDownToOne) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("Shrink.DownToOne", id, 3, rank);
  std::string reports;
  for (const RankProcess& rank : ranks) reports += rank.report();
  EXPECT_EQ(reports, "alone");
}

SLIP_CHILD(Shrink, GoOnWithoutTheStoppedRank) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), short_beats());
    if (const std::string wrong = adder.wrong_sum(comm); !wrong.empty()) return wrong;
    char byte = 'x';
    static_cast<void>(!::write(test::kLine, &byte, 1));
    if (info.rank == 2) static_cast<void>(!::read(test::kLine, &byte, 1));
    EXPECT_TRUE(fails([&] { static_cast<void>(adder.wrong_sum(comm)); }, ErrorCode::kRankLost, {"rank 2"}));
    Communicator less = comm.shrink();
    const std::string wrong = Adder(adder.device()).wrong_sum(less);
    return wrong.empty() ? fmt::format("rank {} of {}", less.rank(), less.nranks()) : wrong;
  });
}

TEST(Shrink, AfterOneWasStopped) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.emplace_back("Shrink.GoOnWithoutTheStoppedRank", id, 4, rank);
  for (const RankProcess& rank : ranks) ASSERT_EQ(rank.hear(1), "x");
  ranks[2].signal(SIGSTOP);
  EXPECT_EQ(ranks[0].report(), "rank 0 of 3");
  EXPECT_EQ(ranks[1].report(), "rank 1 of 3");
  EXPECT_EQ(ranks[3].report(), "rank 2 of 3");
  ranks[2].send('x');
  ranks[2].signal(SIGCONT);
  const std::string report = ranks[2].report();
  EXPECT_NE(report.find("given up by the others"), std::string::npos) << report;
}

// Ranks as threads, with a list of excluded ranks.
std::vector<Met> with_comms(int count, const CommunicatorOptions& options,
                            const std::function<void(Communicator&, const Adder&)>& body) {
  const std::vector<Device> devices(static_cast<std::size_t>(count), Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  return as_ranks(count, [&](int rank) { body(comms[static_cast<std::size_t>(rank)], Adder()); });
}

TEST(Shrink, WithAListOfExcludedRanks) {
  expect_no_errors(with_comms(5, long_timeouts(), [](Communicator& comm, const Adder& adder) {
    if (comm.rank() != 0 && comm.rank() != 3) {
      Communicator less = comm.shrink({3, 0});
      EXPECT_EQ(less.nranks(), 3);
      EXPECT_EQ(less.rank(), comm.rank() == 4 ? 2 : comm.rank() - 1);
      EXPECT_EQ(adder.wrong_sum(less), "");
    }
    EXPECT_EQ(adder.wrong_sum(comm), "");  // as before
  }));
}

TEST(Shrink, WithoutALossIsAllAgain) {
  expect_no_errors(with_comms(3, long_timeouts(), [](Communicator& comm, const Adder& adder) {
    Communicator again = comm.shrink();
    EXPECT_EQ(again.nranks(), 3);
    EXPECT_EQ(adder.wrong_sum(again), "");
  }));
}

TEST(Shrink, AfterOneAborted) {
  const std::vector<Met> met = with_comms(3, long_timeouts(), [](Communicator& comm, const Adder& adder) {
    if (comm.rank() == 1) comm.abort();
    Communicator less = comm.shrink();
    EXPECT_EQ(less.nranks(), 2);
    EXPECT_EQ(adder.wrong_sum(less), "");
  });
  EXPECT_FALSE(met[0].code) << met[0].text;
  EXPECT_EQ(met[1].code, ErrorCode::kAborted) << met[1].text;
  EXPECT_FALSE(met[2].code) << met[2].text;
}

TEST(Shrink, ListsThatDifferFailOnAllRanks) {
  const std::vector<Met> met = with_comms(4, long_timeouts(), [](Communicator& comm, const Adder&) {
    if (comm.rank() != 3) comm.shrink(comm.rank() == 2 ? std::vector<int>{1} : std::vector<int>{3});
  });
  EXPECT_FALSE(met[3].code);
  for (const std::size_t rank : {0U, 1U, 2U}) {
    EXPECT_EQ(met[rank].code, ErrorCode::kMismatch);
    for (const char* words : {"leaves out rank 3", "rank 2 rank 1"})
      EXPECT_NE(met[rank].text.find(words), std::string::npos) << met[rank].text;
  }
}

TEST(Shrink, BadListsAreRefused) {
  expect_no_errors(with_comms(2, long_timeouts(), [](Communicator& comm, const Adder&) {
    EXPECT_TRUE(fails([&] { comm.shrink({2}); }, ErrorCode::kInvalidValue, {"rank 2 of 2"}));
    EXPECT_TRUE(fails([&] { comm.shrink({comm.rank()}); }, ErrorCode::kInvalidValue, {"itself"}));
  }));
}

TEST(Shrink, TheMissingRankIsNamed) {
  CommunicatorOptions options = long_timeouts();
  options.init_timeout = milliseconds(1000);
  const std::vector<Met> met = with_comms(3, options, [](Communicator& comm, const Adder&) {
    if (comm.rank() != 1) comm.shrink();
  });
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(met[rank].code, ErrorCode::kTimeout);
    EXPECT_NE(met[rank].text.find("rank 1 of 3 has not joined shrink"), std::string::npos) << met[rank].text;
  }
}

}  // namespace
}  // namespace slip::test_shrink
