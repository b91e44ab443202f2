// Pipes: what goes in comes out, through cells, by address, and where the kernel does not let the receiver read.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "comm/link/pipe.hpp"
#include "support/errors.hpp"

namespace slip::test_pipe {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::int32_t kNobody = 0x7fff'fff0;  // above any pid
constexpr std::uint64_t kByAddress = 1000;     // small, so that both paths occur often

Bytes random_bytes(std::mt19937_64& random, std::size_t bytes) {
  Bytes result(bytes);
  for (std::byte& one : result) one = static_cast<std::byte>(random());
  return result;
}

// Sizes for all paths: in the head, in one cell and in several.
std::size_t random_size(std::mt19937_64& random) {
  const std::size_t limits[] = {comm::PipeMemory::kInHead, 3000, comm::PipeMemory::kCellBytes + 1,
                                3 * comm::PipeMemory::kCellBytes};
  return random() % (limits[random() % 4] + 1);
}

class Pipes : public testing::TestWithParam<std::int32_t> {
 protected:
  const std::unique_ptr<comm::PipeMemory> memory_ = std::make_unique<comm::PipeMemory>();
  comm::PipeOutlet outlet_{*memory_, kByAddress};
  comm::PipeInlet inlet_{*memory_, 1, 0, GetParam()};
};

// One thread drives a random end, or begins another message.
TEST_P(Pipes, CarryMessagesInTheirOrder) {
  const auto seed = static_cast<unsigned>(std::random_device{}());
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  constexpr std::uint64_t kMessages = 400;
  std::deque<Bytes> out, in;
  for (int turn = 0; inlet_.done() < kMessages; ++turn) {
    ASSERT_LT(turn, 1'000'000) << inlet_.done() << " messages came";
    switch (random() % 4) {
      case 0: static_cast<void>(outlet_.drive()); break;
      case 1: static_cast<void>(inlet_.drive()); break;
      case 2:
        if (outlet_.begun() == kMessages || outlet_.full()) break;
        out.push_back(random_bytes(random, random_size(random)));
        outlet_.begin(out.back().data(), out.back().size(), nullptr);
        break;
      default:
        if (inlet_.begun() == outlet_.begun() || inlet_.full()) break;
        in.push_back(Bytes(out[in.size()].size()));
        inlet_.begin(in.back().data(), in.back().size(), nullptr);
        break;
    }
  }
  while (outlet_.drive()) continue;
  EXPECT_EQ(outlet_.done(), kMessages);
  EXPECT_EQ(out, in);
}

// A send is done when the receiver has the bytes, and not before.
TEST_P(Pipes, KeepWhatGoesByAddressUntilItIsTaken) {
  std::mt19937_64 random(1);
  Bytes sent = random_bytes(random, 2 * comm::PipeMemory::kCellBytes), in(sent.size());
  outlet_.begin(sent.data(), sent.size(), nullptr);
  static_cast<void>(outlet_.drive());
  EXPECT_EQ(outlet_.done(), 0U);
  inlet_.begin(in.data(), in.size(), nullptr);
  while (inlet_.drive() || outlet_.drive()) continue;
  EXPECT_EQ(outlet_.done(), 1U);
  EXPECT_EQ(in, sent);
  if (GetParam() != kNobody) return;  // a sender that was refused once sends no more addresses
  outlet_.begin(sent.data(), sent.size(), nullptr);
  static_cast<void>(outlet_.drive());
  EXPECT_EQ(outlet_.done(), 2U);
}

// Callers sleep or yield after a call that moves nothing, so each window counts.
TEST_P(Pipes, ReportEachWindowThatMoves) {
  if (GetParam() != kNobody) GTEST_SKIP() << "no message goes through windows";
  constexpr std::uint64_t kWindows = 3;
  Bytes sent(kWindows * comm::PipeMemory::kCellBytes, std::byte{5}), in(sent.size());
  outlet_.begin(sent.data(), sent.size(), nullptr);
  inlet_.begin(in.data(), in.size(), nullptr);
  EXPECT_TRUE(outlet_.drive());
  EXPECT_FALSE(inlet_.drive());  // refuses the address
  for (std::uint64_t window = 1; window <= kWindows; ++window) {
    EXPECT_EQ(inlet_.done(), 0U);
    EXPECT_TRUE(outlet_.drive()) << window;
    EXPECT_TRUE(inlet_.drive()) << window;
    EXPECT_FALSE(inlet_.drive()) << window;
  }
  EXPECT_EQ(inlet_.done(), 1U);
  EXPECT_EQ(in, sent);
}

// The receiver's memory behind the message is not written.
TEST_P(Pipes, RefuseAMessageThatIsTooLong) {
  for (const auto& [sent_bytes, bytes] : {std::pair{20UL, 19UL}, {900UL, 899UL}, {5000UL, 4000UL}, {5000UL, 6000UL}}) {
    const auto memory = std::make_unique<comm::PipeMemory>();
    comm::PipeOutlet outlet(*memory, kByAddress);
    comm::PipeInlet inlet(*memory, 1, 0, GetParam());
    Bytes sent(sent_bytes, std::byte{1}), in(std::max(sent_bytes, bytes));
    outlet.begin(sent.data(), sent_bytes, nullptr);
    inlet.begin(in.data(), bytes, nullptr);
    static_cast<void>(outlet.drive());
    const std::string text =
        "rank 1 expected " + std::to_string(bytes) + " bytes from rank 0 and got " + std::to_string(sent_bytes);
    EXPECT_TRUE(test::fails([&] { static_cast<void>(inlet.drive()); }, ErrorCode::kMismatch, {text}));
    EXPECT_EQ(in, Bytes(in.size())) << bytes;
  }
}

// The other way is tried now and then. The sender's copy into the cells ends such a message at once.
TEST_P(Pipes, TryCellsForMessagesThatGoByAddress) {
  if (GetParam() == kNobody) GTEST_SKIP() << "no message goes by address";
  Bytes sent(2 * comm::PipeMemory::kCellBytes), in(sent.size());
  for (std::uint64_t number = 0; number < 12; ++number) {  // too few trials to change the way
    outlet_.begin(sent.data(), sent.size(), nullptr);
    static_cast<void>(outlet_.drive());
    EXPECT_EQ(outlet_.done() == number + 1, comm::Trials::tries(number)) << number;
    inlet_.begin(in.data(), in.size(), nullptr);
    while (inlet_.drive() || outlet_.drive()) continue;
  }
}

TEST_P(Pipes, CarryMessagesBetweenThreads) {
  constexpr std::uint64_t kMessages = 200;
  std::mt19937_64 random(1);
  std::vector<Bytes> out, in;
  for (std::uint64_t i = 0; i < kMessages; ++i) {
    out.push_back(random_bytes(random, random_size(random)));
    in.push_back(Bytes(out.back().size()));
  }
  const auto all = [&](comm::LinkEnd& end, std::vector<Bytes>& messages) {
    for (int turn = 0; end.done() < kMessages; ++turn) {
      if (end.begun() < kMessages && !end.full()) {
        Bytes& next = messages[end.begun()];
        end.begin(next.data(), next.size(), nullptr);
      }
      if (end.drive()) turn = 0;
      else if (turn < base::kLockWait.spins) base::cpu_relax();
      else base::yield_thread();
      if (turn > 50'000'000) break;  // the test below says what is missing
    }
  };
  base::Thread sender;
  sender.start("sender", [&] { all(outlet_, out); });
  all(inlet_, in);
  sender.join();
  EXPECT_EQ(outlet_.done(), kMessages);
  EXPECT_EQ(inlet_.done(), kMessages);
  EXPECT_EQ(out, in);
}

INSTANTIATE_TEST_SUITE_P(ByAddress, Pipes, testing::Values(0, ::getpid(), kNobody), [](const auto& way) {
  return way.param == 0 ? "ReadByTheReceiver" : way.param == kNobody ? "Refused" : "ReadByTheKernel";
});

}  // namespace
}  // namespace slip::test_pipe
