// Communicators on sim devices: the same program as on cpu, with the same bits, in virtual time.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "slip/race.hpp"
#include "slip/verify.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"
#include "world_ranks.hpp"

namespace slip::test_sim_ranks {
namespace {

using test::Bytes;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::sim_world;
using test::values;
using test::with;
using test::WorldRanks;

// What each rank has after every kind of call, one after the other.
std::vector<Bytes> every_call(WorldRanks& ranks, std::size_t elements) {
  const std::size_t n = ranks.size(), bytes = elements * 4;
  std::vector<Buffer> one, all, other;
  for (std::size_t rank = 0; rank < n; ++rank) {
    one.push_back(ranks.upload(rank, values(DataType::kF32, elements, static_cast<unsigned>(rank) + 1)));
    all.push_back(ranks.upload(rank, values(DataType::kF32, elements * n, static_cast<unsigned>(rank) + 100)));
    other.push_back(ranks.upload(rank, Bytes(bytes * n)));
  }
  std::vector<Bytes> result;
  const auto keep = [&](const std::vector<Buffer>& from, std::size_t count) {
    for (std::size_t rank = 0; rank < n; ++rank) result.push_back(ranks.download(rank, from[rank], count));
  };
  const auto each = [&](const auto& call) {
    for (std::size_t rank = 0; rank < n; ++rank) call(rank, ranks.comms[rank], ranks.streams[rank]);
  };
  const auto part = [&](const Buffer& buffer) { return buffer.slice(0, bytes); };
  const auto whole = [&](const Buffer& buffer) { return buffer.slice(0, bytes * n); };
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_reduce(part(other[r]), part(one[r]), DataType::kF32, ReduceOp::kAvg, stream);
  });
  keep(other, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_reduce_scaled(part(one[r]), part(one[r]), DataType::kF32, static_cast<double>(r) + 0.5, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.reduce_scatter(part(one[r]), whole(all[r]), DataType::kF32, ReduceOp::kSum, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.reduce(part(other[r]), part(one[r]), DataType::kF32, ReduceOp::kProd, static_cast<int>(n) - 1, stream);
  });
  result.push_back(ranks.download(n - 1, other[n - 1], bytes));
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_gather(whole(other[r]), part(one[r]), stream);
  });
  keep(other, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.broadcast(part(one[r]), part(all[r]), static_cast<int>(n) / 2, stream);
  });
  keep(one, bytes);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.all_to_all(whole(other[r]), whole(all[r]), stream);
  });
  keep(other, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.gather(whole(all[r]), part(one[r]), 0, stream);
  });
  keep(all, bytes * n);
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    comm.scatter(part(one[r]), whole(other[r]), 0, stream);
  });
  each([&](std::size_t, Communicator& comm, StreamRef stream) { comm.barrier(stream); });
  keep(one, bytes);
  if (n == 1) return result;
  Group group;  // round the ring, and back
  each([&](std::size_t r, Communicator& comm, StreamRef stream) {
    const int next = static_cast<int>((r + 1) % n), before = static_cast<int>((r + n - 1) % n);
    comm.send(part(one[r]), next, stream);
    comm.recv(part(all[r]), before, stream);
    comm.send(other[r].slice(0, 1), before, stream);
    comm.recv(other[r].slice(bytes, 1), next, stream);
  });
  group.end();
  keep(all, bytes);
  keep(other, bytes * n);
  return result;
}

class RanksOnSim : public testing::TestWithParam<Algorithm> {};
INSTANTIATE_TEST_SUITE_P(By, RanksOnSim,
                         testing::Values(Algorithm::kAuto, Algorithm::kDirect, Algorithm::kRing, Algorithm::kTree,
                                         Algorithm::kDoubling),
                         [](const auto& one) { return std::string(algorithm_name(one.param)); });

TEST_P(RanksOnSim, GiveTheBitsOfCpu) {
  for (const int count : {1, 2, 3, 5}) {
    for (const std::size_t elements : {1U, 333U, test::kShare > 1 ? 20'000U : 150'000U}) {
      WorldRanks cpu("cpu", count, with(GetParam())), sim(sim_world(), count, with(GetParam()));
      EXPECT_TRUE(every_call(cpu, elements) == every_call(sim, elements)) << count << " ranks, " << elements;
    }
  }
}

// Each rank in a thread, as programs with a process for each rank are.
TEST_P(RanksOnSim, AreThreads) {
  WorldRanks ranks(sim_world(), 4, with(GetParam()));
  expect_no_errors(test::as_ranks(
      4,
      [&](int index) {
        const auto rank = static_cast<std::size_t>(index);
        for (const std::size_t elements : {3U, 100'000U}) {
          Buffer data = ranks.devices[rank].alloc(elements * 4, MemoryKind::kPinned);
          std::ranges::fill(data.host_write<std::uint32_t>().span(), static_cast<std::uint32_t>(index + 1));
          for (int i = 0; i < 5; ++i)
            ranks.comms[rank].all_reduce(data, data, DataType::kU32, ReduceOp::kSum, ranks.streams[rank]);
          ranks.streams[rank].sync();
          const HostView<const std::uint32_t> view = data.host_read<std::uint32_t>();
          EXPECT_EQ(std::ranges::count(view.span(), 10U * 4 * 4 * 4 * 4), std::ssize(view.span()));
        }
      },
      [&](int rank) { ranks.comms[static_cast<std::size_t>(rank)].abort(); }));
}

class PairOnSim : public testing::Test {
 protected:
  explicit PairOnSim(std::chrono::milliseconds timeout = std::chrono::seconds(60))
      : ranks_(sim_world(), 2, with(Algorithm::kAuto, timeout)) {
    for (const Device& device : ranks_.devices) {
      data_.push_back(device.alloc(4096, MemoryKind::kPinned));
      std::ranges::fill(data_.back().host_write<std::uint32_t>().span(), 1U);
    }
  }
  void add(std::size_t rank, StreamRef stream, std::size_t bytes = 4096) {
    const Range range = data_[rank].slice(0, bytes);
    ranks_.comms[rank].all_reduce(range, range, DataType::kU32, ReduceOp::kSum, stream);
  }
  void add(std::size_t rank) { add(rank, ranks_.streams[rank]); }
  std::uint32_t value(std::size_t rank) const { return data_[rank].host_read<std::uint32_t>()[0]; }

  WorldRanks ranks_;
  std::vector<Buffer> data_;
};
class HastyPairOnSim : public PairOnSim {
 protected:
  HastyPairOnSim() : PairOnSim(std::chrono::milliseconds(100)) {}
};

TEST_F(PairOnSim, CallsAreOpsOfTheirStreams) {
  std::atomic<bool> passed{false};
  add(0);
  ranks_.streams[0].host([&] { passed.store(true); });
  EXPECT_FALSE(ranks_.streams[0].query());
  EXPECT_FALSE(ranks_.streams[0].sync_for(std::chrono::milliseconds(5)));
  EXPECT_FALSE(passed.load());
  EXPECT_EQ(value(0), 1U);
  add(1);
  ranks_.sync();
  EXPECT_TRUE(passed.load());
  EXPECT_EQ(value(0), 2U);
  EXPECT_EQ(value(1), 2U);
}

// In whatever streams, the calls of a rank run in the order of their issue.
TEST_F(PairOnSim, CallsOfTwoStreamsTakeTurns) {
  const Stream other = ranks_.devices[0].stream(StreamFlags::kNonBlocking);
  const Stream slow = ranks_.devices[0].stream(StreamFlags::kNonBlocking);
  static const Kernel kWork{"work", [](const Args&) {}};
  slow.launch(kWork, {}, {.time = 1'000'000'000});
  ranks_.streams[0].wait(slow.record());  // so that the second call comes first in virtual time
  add(0);
  add(0, other);
  add(1);
  add(1);
  other.sync();
  EXPECT_TRUE(ranks_.streams[0].query());
  ranks_.sync();
  EXPECT_EQ(value(0), 4U);
  EXPECT_EQ(value(1), 4U);
}

TEST_F(PairOnSim, CallsThatDifferFailOnAllRanks) {
  add(0, ranks_.streams[0], 4096);
  add(1, ranks_.streams[1], 80);
  for (const Stream& stream : ranks_.streams)
    EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kMismatch,
                      {"all_reduce of 1024 U32 by sum, call 1", "all_reduce of 20 U32", "rank 0", "rank 1"}));
  for (Communicator& comm : ranks_.comms) {
    ASSERT_TRUE(comm.error());
    EXPECT_EQ(comm.error()->code(), ErrorCode::kMismatch);
  }
  EXPECT_TRUE(fails([&] { add(0, ranks_.devices[0].stream()); }, ErrorCode::kMismatch));
}

TEST_F(PairOnSim, MessagesThatDifferFailOnBothRanks) {
  ranks_.comms[0].send(data_[0].slice(0, 100), 1, ranks_.streams[0]);
  ranks_.comms[1].recv(data_[1].slice(0, 200), 0, ranks_.streams[1]);
  for (const Stream& stream : ranks_.streams)
    EXPECT_TRUE(fails([&] { stream.sync(); }, ErrorCode::kMismatch, {"100 bytes", "200 bytes"}));
}

TEST_F(HastyPairOnSim, TheMissingRankIsNamed) {
  add(0);
  EXPECT_TRUE(fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kTimeout, {"all_reduce of 1024 U32", "rank 1"}));
  EXPECT_TRUE(fails([&] { add(1); }, ErrorCode::kTimeout, {"rank 1"}));
}

// A root has done its part, but in virtual time nothing has begun.
TEST_F(HastyPairOnSim, ARootWaitsForTheOthersToo) {
  ranks_.comms[0].broadcast(data_[0].slice(0, 8), data_[0].slice(0, 8), 0, ranks_.streams[0]);
  EXPECT_TRUE(fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kTimeout, {"rank 1"}));
}

TEST_F(HastyPairOnSim, AMessageThatNobodyTakes) {
  ranks_.comms[0].send(data_[0].slice(0, 8), 1, ranks_.streams[0]);
  EXPECT_TRUE(fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kTimeout, {"rank 1"}));
}

TEST_F(PairOnSim, AStreamThatFailedIsReportedToTheOthers) {
  static const Kernel kThrow{"throws", [](const Args&) { throw std::runtime_error("of its own"); }};
  ranks_.streams[1].launch(kThrow, {});
  add(1);
  add(0);
  EXPECT_TRUE(
      fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kAborted, {"rank 1 skipped all_reduce", "of its own"}));
  EXPECT_TRUE(fails([&] { ranks_.streams[1].sync(); }, ErrorCode::kLaunchFailed, {"of its own"}));
}

TEST_F(PairOnSim, AbortEndsWhatIsUnderWay) {
  add(0);
  ranks_.comms[0].abort();
  EXPECT_TRUE(fails([&] { ranks_.streams[0].sync(); }, ErrorCode::kAborted));
}

TEST_F(PairOnSim, EndsWithCallsUnderWay) {
  for (int i = 0; i < 3; ++i) {
    add(0);
    add(1);
  }
  ranks_.comms.clear();  // each waits for its own
  ranks_.sync();
  EXPECT_EQ(value(0), 8U);
  EXPECT_EQ(value(1), 8U);
}

TEST_F(PairOnSim, PlansLaunchCalls) {
  std::vector<Plan> plans;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    ranks_.streams[rank].begin_capture();
    add(rank);
    plans.push_back(ranks_.streams[rank].end_capture());
  }
  for (int i = 0; i < 3; ++i) {
    for (std::size_t rank = 0; rank < 2; ++rank) ranks_.streams[rank].launch(plans[rank]);
  }
  add(0);
  add(1);
  ranks_.sync();
  EXPECT_EQ(value(0), 16U);
  const Stream elsewhere = Device::open("cpu").stream();
  EXPECT_TRUE(fails([&] { elsewhere.launch(plans[0]); }, ErrorCode::kUnsupported, {"all_reduce", "'cpu'", "clock"}));
}

TEST_F(PairOnSim, PartsAreCommunicatorsOfTheirOwn) {
  std::vector<std::optional<Communicator>> parts(2);
  expect_no_errors(test::as_ranks(2, [&](int rank) {
    parts[static_cast<std::size_t>(rank)] = ranks_.comms[static_cast<std::size_t>(rank)].split(0, -rank);
  }));
  EXPECT_EQ(parts[0]->rank(), 1);
  for (std::size_t rank = 0; rank < 2; ++rank)
    parts[rank]->all_reduce(data_[rank], data_[rank], DataType::kU32, ReduceOp::kSum, ranks_.streams[rank]);
  ranks_.sync();
  EXPECT_EQ(value(1), 2U);
}

TEST_F(PairOnSim, StreamsOfAnotherClockAreRefused) {
  const Device other = Device::open(sim_world()), cpu = Device::open("cpu");
  EXPECT_TRUE(fails([&] { add(0, other.stream()); }, ErrorCode::kUnsupported, {"all_reduce", "different clocks"}));
  EXPECT_TRUE(fails([&] { add(0, cpu.stream()); }, ErrorCode::kUnsupported, {"all_reduce", "'cpu'"}));
  EXPECT_TRUE(fails(
      [&] {
        Communicator::init_all(std::vector{other, ranks_.devices[0]});
      },
      ErrorCode::kUnsupported, {"ranks 0 and 1", "open_all"}));
  EXPECT_TRUE(fails(
      [&] {
        Communicator::init_all(std::vector{cpu, ranks_.devices[0]});
      },
      ErrorCode::kUnsupported, {"ranks 0 and 1"}));
}

TEST_F(PairOnSim, AreSeenByTheRaceChecker) {
  static const Kernel kLook{"look", [](const Args&) {}};
  const Stream side = ranks_.devices[0].stream(StreamFlags::kNonBlocking);
  for (const bool waits : {true, false}) {
    RaceChecker checker;
    add(0);
    add(1);
    if (waits) side.wait(ranks_.streams[0].record());
    side.launch(kLook, {.reads = {data_[0]}});
    ranks_.sync();
    side.sync();
    EXPECT_EQ(checker.report().races.empty(), waits) << checker.report().text();
  }
}

}  // namespace
}  // namespace slip::test_sim_ranks
