// How a group ends: by end(), by cancel(), in its destructor, by an exception, and after its communicator.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>
#include <type_traits>

#include "cpu_ranks.hpp"
#include "slip/plan.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "world_ranks.hpp"

namespace slip::test_groups {
namespace {

using test::Bytes;
using test::fails;
using test::WorldRanks;

class Groups : public testing::TestWithParam<const char*> {
 protected:
  static bool on_sim() { return std::string(GetParam()) == "sim"; }
  static CommunicatorOptions options() {
    CommunicatorOptions options;
    options.timeout = std::chrono::seconds(60);
    if (std::string(GetParam()) == "net") options.transport = Transport::kNet;
    return options;
  }
  Buffer words(std::size_t rank, std::uint32_t value, std::size_t count = 1000) const {
    Buffer data = ranks_.devices[rank].alloc(count * 4, MemoryKind::kPinned);
    std::ranges::fill(data.host_write<std::uint32_t>().span(), value);
    return data;
  }
  static std::uint32_t last(const Buffer& data) {
    const HostView<const std::uint32_t> view = data.host_read<std::uint32_t>();
    return view[view.span().size() - 1];
  }
  void exchange(const Buffer& out, const Buffer& in) {
    ranks_.comms[0].send(out, 1, ranks_.streams[0]);
    ranks_.comms[1].recv(in, 0, ranks_.streams[1]);
  }
  // The communicator refuses without waiting.
  void expect_failed(std::size_t rank, ErrorCode code, std::initializer_list<std::string_view> text) {
    EXPECT_TRUE(fails([&] { ranks_.comms[rank].barrier(ranks_.devices[rank].stream()); }, code, text));
    ASSERT_TRUE(ranks_.comms[rank].error());
    EXPECT_EQ(ranks_.comms[rank].error()->code(), code);
  }

  // The streams and communicators of both ranks have the error of a group that was destroyed without end().
  void expect_unended(int messages) {
    const std::string count = fmt::format("its {} messages were not sent", messages);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(fails([&] { ranks_.streams[rank].sync(); }, ErrorCode::kMismatch, {"without end()", count}));
      expect_failed(rank, ErrorCode::kMismatch,
                    {"of 2: the group begun at", "test_groups.cpp", "without end()", count});
    }
  }

  WorldRanks ranks_{on_sim() ? test::sim_world() : "cpu", 2, options()};
};
INSTANTIATE_TEST_SUITE_P(On, Groups, testing::Values("cpu", "sim", "net"),
                         [](const auto& one) { return std::string(one.param); });

static_assert(!std::is_copy_constructible_v<Group> && !std::is_move_constructible_v<Group>);

TEST_P(Groups, AreSubmittedByTheirEnd) {
  const Buffer out = words(0, 7), in = words(1, 0);
  {
    Group group;
    exchange(out, in);
    group.end();
    group.end();  // does nothing
  }
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
  for (const Communicator& comm : ranks_.comms) EXPECT_FALSE(comm.error());
}

// A group without messages, or one that its program cancelled, is no error.
TEST_P(Groups, ThatAreCancelledSendNothing) {
  const Buffer out = words(0, 7), other = words(0, 9), in = words(1, 0);
  { const Group empty; }
  {
    Group group;
    exchange(out, in);
    group.cancel();
    group.end();  // does nothing
  }
  ranks_.sync();  // there is nothing to wait for
  EXPECT_EQ(last(in), 0U);
  exchange(other, in);  // no group is open any more
  ranks_.sync();
  EXPECT_EQ(last(in), 9U);
  for (const Communicator& comm : ranks_.comms) EXPECT_FALSE(comm.error());
}

TEST_P(Groups, ThatAnExceptionDestroysAreAnError) {
  const Buffer out = words(0, 7), in = words(1, 0);
  EXPECT_THROW(
      {
        Group group;
        exchange(out, in);
        throw std::runtime_error("the program gives up");
      },
      std::runtime_error);
  expect_unended(2);
  EXPECT_EQ(last(in), 0U);
}

// Without end(), a group within another drops its own messages. Both use the same communicators here, so the outer
// group cannot be sent either.
TEST_P(Groups, WithinAnotherDropTheirOwnMessages) {
  const Buffer first = words(0, 7), second = words(0, 8), in = words(1, 0), never = words(1, 5);
  Group outer;
  exchange(first, in);
  {
    const Group inner;
    exchange(second, never);
  }
  EXPECT_TRUE(fails([&] { outer.end(); }, ErrorCode::kMismatch, {"rank 0 of 2", "test_groups.cpp", "without end()"}));
  expect_unended(2);
  EXPECT_EQ(last(in), 0U);
  EXPECT_EQ(last(never), 5U);
}

TEST_P(Groups, WithinAnotherAreCancelledAlone) {
  const Buffer first = words(0, 7), second = words(0, 8), in = words(1, 0), never = words(1, 5);
  Group outer;
  exchange(first, in);
  {
    Group inner;
    exchange(second, never);
    EXPECT_TRUE(fails([&] { outer.end(); }, ErrorCode::kInvalidValue, {"began within it has not ended"}));
    inner.cancel();
  }
  outer.end();
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
  EXPECT_EQ(last(never), 5U);
}

// The inner group has ended, but its messages belong to the outer one.
TEST_P(Groups, DropTheMessagesOfTheGroupsWithinThem) {
  const Buffer out = words(0, 7), in = words(1, 0);
  {
    const Group outer;
    Group inner;
    exchange(out, in);
    inner.end();
  }
  expect_unended(2);
  EXPECT_EQ(last(in), 0U);
}

// Only communicators of dropped messages fail.
TEST_P(Groups, LeaveOtherCommunicatorsAlone) {
  const Buffer out = words(0, 7), in = words(1, 0);
  std::vector<Communicator> others = Communicator::init_all(ranks_.devices, options());
  const Stream streams[] = {ranks_.devices[0].stream(), ranks_.devices[1].stream()};
  Group outer;
  exchange(out, in);
  {
    const Group inner;
    others[0].send(out, 1, streams[0]);
    others[1].recv(in, 0, streams[1]);
  }
  outer.end();
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
  for (const Communicator& comm : ranks_.comms) EXPECT_FALSE(comm.error());
  for (const Communicator& comm : others) EXPECT_TRUE(comm.error());
}

// The error is written to stderr once, and it names the line of the group.
TEST_P(Groups, WithoutEndAreLoggedOnce) {
  const Buffer out = words(0, 7), in = words(1, 0);
  testing::internal::CaptureStderr();
  const int line = __LINE__ + 2;
  {
    const Group group;
    exchange(out, in);
    exchange(out, in);
  }
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string wanted =
      fmt::format("test_groups.cpp:{} was destroyed without end(), so its 4 messages were not sent", line);
  const std::size_t at = text.find(wanted);
  ASSERT_NE(at, std::string::npos) << text;
  EXPECT_EQ(text.find("without end()", at + wanted.size()), std::string::npos) << text;
  expect_unended(4);
}

TEST_P(Groups, WithoutEndAreAnErrorEvenIfItCannotBeLogged) {
  const Buffer out = words(0, 7), in = words(1, 0);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  if (full < 0) GTEST_SKIP() << "no /dev/full here";
  const int log = ::dup(STDERR_FILENO);
  ::dup2(full, STDERR_FILENO);
  {
    const Group group;
    exchange(out, in);
  }
  ::dup2(log, STDERR_FILENO);
  ::close(log);
  ::close(full);
  expect_unended(2);
}

// A group that begins and ends in a destructor while an exception unwinds the stack works like any other.
TEST_P(Groups, InACleanupAreSubmitted) {
  const Buffer out = words(0, 7), in = words(1, 0);
  struct AtTheEnd {
    std::function<void()> body;
    ~AtTheEnd() { body(); }
  };
  EXPECT_THROW(
      {
        const AtTheEnd cleanup{[&] {
          Group group;
          exchange(out, in);
          group.end();
        }};
        throw std::runtime_error("the program gives up");
      },
      std::runtime_error);
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
}

TEST_P(Groups, ThatAreRefusedThrowAtTheirEndAndSendNothing) {
  const Buffer out = words(0, 7), in = words(1, 0);
  const Stream side = ranks_.devices[0].stream(StreamFlags::kNonBlocking);
  for (const bool several : {false, true}) {
    Group group;
    exchange(out, in);
    ranks_.comms[0].send(out, 5, several ? side : ranks_.streams[0]);
    EXPECT_TRUE(fails([&] { group.end(); }, ErrorCode::kInvalidValue, {"rank 5 is not a rank of", "has 2 ranks"}));
  }
  ranks_.sync();
  EXPECT_EQ(last(in), 0U);
  exchange(out, in);
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
}

TEST_P(Groups, WithoutEndAreTheErrorOfAllThatTheyTouch) {
  const Buffer out = words(0, 7), in = words(1, 0), more = words(1, 0);
  const Stream side = ranks_.devices[0].stream(StreamFlags::kNonBlocking);
  {
    const Group group;
    exchange(out, in);
    ranks_.comms[0].send(out, 1, side);
    ranks_.comms[1].recv(more, 0, ranks_.streams[1]);
  }
  EXPECT_EQ(last(in), 0U);
  EXPECT_TRUE(fails([&] { side.sync(); }, ErrorCode::kMismatch, {"without end()", "4 messages"}));
  expect_unended(4);
}

// Rank 1 waits for a message that rank 0 drops. It gets rank 0's error, long before its deadline of 60 s.
TEST_P(Groups, WithoutEndAreTheErrorOfTheRankThatWaits) {
  const Buffer out = words(0, 7), in = words(1, 0);
  ranks_.comms[1].recv(in, 0, ranks_.streams[1]);
  {
    const Group group;
    ranks_.comms[0].send(out, 1, ranks_.streams[0]);
  }
  EXPECT_TRUE(fails([&] { ranks_.streams[1].sync(); }, ErrorCode::kMismatch,
                    {"rank 0 of 2: the group begun at", "without end()", "its message was not sent"}));
  expect_failed(1, ErrorCode::kMismatch, {"rank 0 of 2", "without end()"});
}

// What the stream had before the group still runs.
TEST_P(Groups, WithoutEndFailInTheOrderOfTheirStream) {
  const Buffer out = words(0, 7);
  int ran = 0;
  const Event before = [&] {
    ranks_.streams[0].host([&ran] { ran = 1; });
    return ranks_.streams[0].record();
  }();
  {
    const Group group;
    ranks_.comms[0].send(out, 1, ranks_.streams[0]);
  }
  before.sync();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(
      fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kMismatch, {"without end()", "its message was not sent"}));
}

TEST_P(Groups, WithoutEndInvalidateACapture) {
  const Buffer out = words(0, 7);
  ranks_.streams[0].begin_capture();
  {
    const Group group;
    ranks_.comms[0].send(out, 1, ranks_.streams[0]);
  }
  EXPECT_TRUE(fails([&] { static_cast<void>(ranks_.streams[0].end_capture()); }, ErrorCode::kCaptureInvalidated));
}

TEST_P(Groups, MayOutliveTheirCommunicators) {
  const Buffer out = words(0, 7), in = words(1, 0);
  for (const bool ended : {true, false}) {
    std::vector<Communicator> others = Communicator::init_all(ranks_.devices, options());
    const Stream streams[] = {ranks_.devices[0].stream(), ranks_.devices[1].stream()};
    {
      Group group;
      others[0].send(out, 1, streams[0]);
      others[1].recv(in, 0, streams[1]);
      others.clear();
      if (ended) {
        EXPECT_TRUE(fails([&] { group.end(); }, ErrorCode::kInvalidHandle, {"destroyed before the group ended"}));
      }
    }
    for (const Stream& stream : streams) {
      if (ended) stream.sync();
      else EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kMismatch, {"without end()"}));
    }
  }
  EXPECT_EQ(last(in), 0U);
}

TEST_P(Groups, FollowACommunicatorThatMoves) {
  const Buffer out = words(0, 7), in = words(1, 0);
  Group group;
  exchange(out, in);
  Communicator moved = std::move(ranks_.comms[0]);
  group.end();
  ranks_.sync();
  EXPECT_EQ(last(in), 7U);
  ranks_.comms[0] = std::move(moved);
}

TEST_P(Groups, WithoutEndFailACommunicatorThatMoved) {
  const Buffer out = words(0, 7), in = words(1, 0);
  std::vector<Communicator> moved;
  {
    const Group group;
    exchange(out, in);
    moved.push_back(std::move(ranks_.comms[0]));
  }
  ranks_.comms[0] = std::move(moved[0]);
  expect_unended(2);
}

// Rank 1 is gone. Rank 0 must not take the content of its buffer for a message of rank 1.
SLIP_CHILD(GroupsOfADeadPeer, Exchange) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    const Buffer out = device.alloc(64, MemoryKind::kPinned), in = device.alloc(64, MemoryKind::kPinned);
    const auto exchange = [&] {
      Group group;
      comm.send(out, 1 - info.rank, stream);
      comm.recv(in, 1 - info.rank, stream);
      group.end();
    };
    exchange();
    stream.sync();
    static_cast<void>(!::write(test::kLine, "x", 1));
    if (info.rank == 1) {
      for (;;) ::pause();
    }
    while (!comm.error()) std::this_thread::yield();  // rank 1 was killed
    std::string report;
    try {
      exchange();
      report = "stale data passed as good";
    } catch (const Error& error) {
      report = error.what();
    }
    try {
      comm.barrier(device.stream());
      report += "; a later call passed";
    } catch (const Error& error) {
      report += fmt::format("; {}", error.what());
    }
    return report;
  });
}

TEST(GroupsOfADeadPeer, AreAnErrorOfTheirEndAndOfLaterCalls) {
  const UniqueId id = test::local_id();
  std::vector<test::RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back("GroupsOfADeadPeer.Exchange", id, 2, rank);
  for (const test::RankProcess& rank : ranks) ASSERT_EQ(rank.hear(1), "x");
  ranks[1].signal(SIGKILL);
  const std::string report = ranks[0].report();
  const std::string gone = "rank 1 is gone";
  EXPECT_NE(report.find(gone), std::string::npos) << report;
  EXPECT_NE(report.find(gone, report.find("; ")), std::string::npos) << report;
  EXPECT_EQ(report.find("passed"), std::string::npos) << report;
}

}  // namespace
}  // namespace slip::test_groups
