// Notifications between ranks: why one failed, and what another is doing.
#include <cstring>
#include <thread>

#include "support/errors.hpp"
#include "support/ranks.hpp"

namespace slip::test::test_notifications {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Notifications, AFailureReachesAllWithItsCodeAndText) {
  for (const int nranks : {2, 3, 7}) {
    const UniqueId id = local_id();
    const int failing = nranks / 2;
    const std::vector<Met> met = as_ranks(nranks, [&](int rank) {
      transport::Bootstrap bootstrap(id, nranks, rank, within(seconds(30)));
      bootstrap.barrier();
      if (rank == failing) bootstrap.failures().fail(ErrorCode::kMismatch, "the one reason");
      try {
        static_cast<void>(bootstrap.recv((rank + 1) % nranks, 1));
      } catch (const Error&) {
        EXPECT_TRUE(bootstrap.broken());
        EXPECT_EQ(bootstrap.failures().failure()->rank, failing);
        EXPECT_EQ(bootstrap.failures().failure()->text, "the one reason");
        EXPECT_EQ(bootstrap.failures().failure()->code, ErrorCode::kMismatch);
        EXPECT_FALSE(bootstrap.failures().first_loss());
        bootstrap.failures().fail(ErrorCode::kIo, "too late");
        EXPECT_EQ(bootstrap.failures().failure()->text, "the one reason");
        throw;
      }
    });
    for (const Met& one : met) {
      EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
      EXPECT_NE(one.text.find("the one reason"), std::string::npos) << one.text;
    }
  }
}

// All ranks end with the failure of the lowest rank, even if it failed later.
TEST(Notifications, OfSeveralFailuresAllArriveAtTheLowestRanks) {
  constexpr int kRanks = 5;
  const UniqueId id = local_id();
  std::atomic<int> here{0};  // not a barrier of the bootstrap, which the first failure would end for late ranks
  expect_no_errors(as_ranks(kRanks, [&](int rank) {
    transport::Bootstrap bootstrap(id, kRanks, rank, within(seconds(30)));
    here.fetch_add(1);
    while (here.load() < kRanks) std::this_thread::yield();
    bootstrap.failures().fail(ErrorCode::kIo, std::string(5000, static_cast<char>('0' + rank)));
    // If rank 0 is notified of another failure before its own, it does not fail; then the lowest rank that did counts.
    const std::vector<int> known = [&] {
      std::vector<int> ranks;
      for (int turn = 0; turn < 1000; ++turn) {
        ranks.push_back(bootstrap.failures().failure()->rank);
        std::this_thread::yield();
      }
      return ranks;
    }();
    EXPECT_TRUE(std::is_sorted(known.rbegin(), known.rend()));  // only ever lower
    const transport::RankFailure last = *bootstrap.failures().failure();
    EXPECT_EQ(last.text, std::string(transport::kMaxFailureText, static_cast<char>('0' + last.rank)));
  }));
}

TEST(Notifications, AFailureIsSentEvenByARankThatLeavesAtOnce) {
  const UniqueId id = local_id();
  const std::vector<Met> met = as_ranks(3, [&](int rank) {
    transport::Bootstrap bootstrap(id, 3, rank, within(seconds(30)));
    bootstrap.barrier();
    if (rank == 1) return bootstrap.failures().fail(ErrorCode::kMismatch, "left with words");
    static_cast<void>(bootstrap.recv(1, 1));
  });
  for (const int rank : {0, 2})
    EXPECT_NE(met[static_cast<std::size_t>(rank)].text.find("left with words"), std::string::npos);
}

class TextMonitor final : public transport::RankMonitor {
 public:
  explicit TextMonitor(std::string text) : text_(std::move(text)) {}
  void look() override { looks.fetch_add(1); }
  std::vector<std::byte> answer() override {
    const auto bytes = as_bytes(text_);
    return {bytes.begin(), bytes.end()};
  }
  std::uint64_t calls() const override { return text_.size(); }
  std::atomic<int> looks{0};

 private:
  std::string text_;
};

// The ranks that are asked do nothing at all meanwhile.
TEST(Notifications, AQuestionIsAnsweredWhateverTheRankIsDoing) {
  constexpr int kRanks = 4;
  const UniqueId id = local_id();
  std::atomic<bool> asked{false};
  expect_no_errors(as_ranks(kRanks, [&](int rank) {
    transport::Bootstrap bootstrap(id, kRanks, rank, within(seconds(30)));
    const auto monitor = std::make_shared<TextMonitor>("I am rank " + std::to_string(rank));
    if (rank != 3) bootstrap.server().set_monitor(monitor);  // rank 3 gives no answer
    bootstrap.barrier();
    if (rank == 0) {
      const std::vector<int> others{0, 1, 2};
      const auto answers = bootstrap.ask(others, seconds(30));
      EXPECT_EQ(answers.size(), 2U);  // a rank does not ask itself
      for (const int other : {1, 2}) EXPECT_EQ(as_text(answers.at(other)), "I am rank " + std::to_string(other));
      EXPECT_TRUE(bootstrap.ask(std::vector<int>{3}, seconds(30)).empty());  // does not wait for a monitor
      asked.store(true);
    }
    while (!asked.load()) std::this_thread::yield();
    if (rank != 3) {
      while (monitor->looks.load() == 0) std::this_thread::yield();
    }
    bootstrap.server().set_monitor(nullptr);
    bootstrap.barrier();
  }));
}

// Over the ring, and with a rank in between.
TEST(Notifications, TheGoodbyeSaysHowManyCallsTheRankHadMade) {
  const UniqueId id = local_id();
  std::atomic<int> checked{0};
  expect_no_errors(as_ranks(3, [&](int rank) {
    transport::Bootstrap bootstrap(id, 3, rank, within(seconds(30)));
    bootstrap.server().set_monitor(std::make_shared<TextMonitor>("12345"));
    bootstrap.barrier();
    if (rank == 1) return;
    while (!bootstrap.failures().has_left(1)) std::this_thread::yield();
    EXPECT_EQ(bootstrap.failures().calls_of_departed(1), 5U);
    EXPECT_FALSE(bootstrap.failures().calls_of_departed(2 - rank));
    checked.fetch_add(1);
    while (checked.load() < 2) std::this_thread::yield();  // before that neither leaves
  }));
}

TEST(Notifications, ACleanShutdownIsKnown) {
  const UniqueId id = local_id();
  expect_no_errors(as_ranks(2, [&](int rank) {
    transport::Bootstrap bootstrap(id, 2, rank, within(seconds(30)));
    bootstrap.barrier();
    if (rank == 1) return;
    while (!bootstrap.failures().has_left(1)) std::this_thread::yield();
    EXPECT_FALSE(bootstrap.broken());
  }));
}

TEST(Notifications, AllRanksOfACommunicatorHaveOneId) {
  const UniqueId first = local_id(), second = local_id();
  std::vector<std::uint64_t> ids(4);
  expect_no_errors(as_ranks(4, [&](int rank) {
    const transport::Bootstrap bootstrap(rank < 2 ? first : second, 2, rank % 2, within(seconds(30)));
    ids[static_cast<std::size_t>(rank)] = bootstrap.id();
  }));
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[2], ids[3]);
  EXPECT_NE(ids[0], ids[2]);
}

}  // namespace
}  // namespace slip::test::test_notifications
