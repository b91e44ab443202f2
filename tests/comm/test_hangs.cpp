// Ranks that do not join a call, are stopped, killed or abort, and what the other ranks report.
#include <gtest/gtest.h>

#include <cstdio>
#include <future>
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "slip/communicator.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::test_hangs {
namespace {

using test::as_ranks;
using test::kLine;
using test::Met;
using test::play;
using test::RankProcess;

unsigned new_seed() {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  return seed;
}

// Endless calls of all sizes. Each one sends the test a byte, so that the test can interrupt it anywhere.
SLIP_CHILD(Hangs, SumForEver) {
  play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    const Buffer data = device.alloc(4 << 20, MemoryKind::kPinned);
    std::mt19937 random(1);  // the same on all ranks
    for (;;) {
      const Range range = data.slice(0, 4 * (random() % 3 == 0 ? 1 + random() % (1 << 20) : 1 + random() % 1000));
      if (info.rank == 1) static_cast<void>(!::write(kLine, "x", 1));
      comm.all_reduce(range, range, DataType::kF32, ReduceOp::kSum, stream);
      stream.sync();
    }
  });
}

// Sends rank 1 the signal somewhere in its calls; returns what the other ranks report.
void expect_error_after(int number, const char* words) {
  const unsigned seed = new_seed();
  std::mt19937 random(seed);
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("Hangs.SumForEver", id, 3, rank);
  const std::size_t calls = 1 + random() % 60;
  ASSERT_EQ(ranks[1].hear(calls).size(), calls) << "seed " << seed;
  for (unsigned spins = random() % 20'000; spins > 0; --spins) std::this_thread::yield();
  ranks[1].signal(number);
  const std::int64_t begun = base::now_ns();
  for (const std::size_t rank : {0U, 2U}) {
    const std::string report = ranks[rank].report();
    EXPECT_NE(report.find(words), std::string::npos) << "seed " << seed << ": " << report;
  }
  std::printf("known to all after %.2f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);
}

TEST(Hangs, AKilledRankIsAnErrorOnAllOthers) {
  for (int round = 0; round < 3; ++round) expect_error_after(SIGKILL, "rank 1 is gone");
}

TEST(Hangs, AStoppedRankIsAnErrorOnAllOthers) { expect_error_after(SIGSTOP, "rank 1 gives no sign of life"); }

// Rank 1 computes, in its only thread, until the test sends it a byte; the other waits for it in a call.
SLIP_CHILD(Hangs, ComputeForLong) {
  play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    comm.barrier(stream);
    stream.sync();
    static_cast<void>(!::write(kLine, "x", 1));
    if (info.rank == 1) {
      char byte = 0;
      std::uint64_t sum = 0;
      while (::recv(kLine, &byte, 1, MSG_DONTWAIT) != 1) {
        for (std::uint64_t i = 0; i < 1'000'000; ++i) sum += i * sum + 1;
      }
      if (sum == 1) return "cannot be";
    }
    comm.barrier(stream);
    stream.sync();
    return "went on";
  });
}

// A rank of another job is stopped. When that one counts as lost, the time was long enough.
TEST(Hangs, ARankThatComputesForLongIsNotTakenForDead) {
  const UniqueId id = test::local_id(), other_id = test::local_id();
  std::vector<RankProcess> job, other;
  for (int rank = 0; rank < 2; ++rank) {
    job.emplace_back("Hangs.ComputeForLong", id, 2, rank);
    other.emplace_back("Hangs.ComputeForLong", other_id, 2, rank);
  }
  for (const RankProcess& rank : job) ASSERT_EQ(rank.hear(1), "x");
  for (const RankProcess& rank : other) ASSERT_EQ(rank.hear(1), "x");
  other[1].signal(SIGSTOP);
  const std::string lost = other[0].report();
  EXPECT_NE(lost.find("rank 1 gives no sign of life"), std::string::npos) << lost;
  job[1].send('x');
  for (const RankProcess& rank : job) EXPECT_EQ(rank.report(), "went on");
}

CommunicatorOptions short_timeout() {
  CommunicatorOptions options;
  options.timeout = std::chrono::seconds(2);
  return options;
}

// Rank 1 joins the second call when the test sends it a byte.
SLIP_CHILD(Hangs, WaitForTheOther) {
  play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device, short_timeout());
    const Stream stream = device.stream();
    comm.barrier(stream);
    stream.sync();
    if (info.rank == 0) {
      comm.barrier(stream);
      if (device.sync_for(std::chrono::milliseconds(50))) return "rank 0 did not wait";
    }
    static_cast<void>(!::write(kLine, "x", 1));
    char byte = 0;
    if (info.rank == 1) {
      static_cast<void>(!::read(kLine, &byte, 1));
      comm.barrier(stream);
    }
    stream.sync();
    return "went on";
  });
}

// As by Ctrl-Z and fg of a launcher. A call of this process with the same timeout shows that the stop was long enough.
TEST(Hangs, TheTimeOfAStopOfTheWholeJobDoesNotCount) {
  for (const bool over_net : {false, true}) {
    SCOPED_TRACE(over_net);
    const UniqueId id = test::local_id();
    std::vector<RankProcess> job;
    for (int rank = 0; rank < 2; ++rank)
      job.emplace_back("Hangs.WaitForTheOther", id, 2, rank,
                       std::map<std::string, std::string>{{"SLIP_TRANSPORT", over_net ? "net" : "auto"}});
    for (const RankProcess& rank : job) ASSERT_EQ(rank.hear(1), "x");
    for (const RankProcess& rank : job) rank.signal(SIGSTOP);
    const UniqueId own = test::local_id();
    std::promise<void> timed_out;
    test::expect_no_errors(test::as_ranks(2, [&](int rank) {
      const Device device = Device::open("cpu", {.compute_workers = 2});
      Communicator comm = Communicator::init(own, 2, rank, device, short_timeout());
      const Stream stream = device.stream();
      if (rank == 0) {
        comm.barrier(stream);
        EXPECT_TRUE(test::fails([&] { stream.sync(); }, ErrorCode::kTimeout, {"rank 1"}));
        timed_out.set_value();
      } else {
        timed_out.get_future().wait();
      }
      comm.abort();
    }));
    for (const RankProcess& rank : job) rank.signal(SIGCONT);
    job[1].send('x');
    for (const RankProcess& rank : job) EXPECT_EQ(rank.report(), "went on");
  }
}

// Rank 0 aborts in the middle of a call that rank 2 never joins.
SLIP_CHILD(Hangs, GiveUp) {
  play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    comm.barrier(stream);
    stream.sync();
    static_cast<void>(!::write(kLine, "x", 1));
    char byte = 0;
    if (info.rank == 2) static_cast<void>(!::read(kLine, &byte, 1));
    comm.barrier(stream);
    if (info.rank == 0) {
      static_cast<void>(!::read(kLine, &byte, 1));
      comm.abort();
    }
    stream.sync();
    return "came";
  });
}

TEST(Hangs, AnAbortEndsTheCallOnAllRanks) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("Hangs.GiveUp", id, 3, rank);
  for (const RankProcess& rank : ranks) ASSERT_EQ(rank.hear(1), "x");
  const std::int64_t begun = base::now_ns();
  ranks[0].send('x');
  for (const std::size_t rank : {0U, 1U}) {
    const std::string report = ranks[rank].report();
    for (const char* words : {"aborted", "rank 0"}) EXPECT_NE(report.find(words), std::string::npos) << report;
  }
  std::printf("known to both after %.3f s\n", static_cast<double>(base::now_ns() - begun) / 1e9);
  ranks[2].send('x');
  const std::string late = ranks[2].report();
  EXPECT_NE(late.find("aborted"), std::string::npos) << late;
}

TEST(Hangs, ARankThatLeavesBeforeACallIsNamed) {
  const UniqueId id = test::local_id();
  const std::vector<Met> met = as_ranks(2, [&](int rank) {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    const Stream stream = device.stream();
    Communicator comm = Communicator::init(id, 2, rank, device);
    comm.barrier(stream);
    stream.sync();
    if (rank == 1) return;
    comm.barrier(stream);
    stream.sync();
  });
  EXPECT_FALSE(met[1].code) << met[1].text;
  EXPECT_EQ(met[0].code, ErrorCode::kRankLost);
  EXPECT_NE(met[0].text.find("rank 1 has left the communicator; rank 0 waits for it in barrier, call 2"),
            std::string::npos)
      << met[0].text;
}

// The same where ranks exchange messages: over memory and over a network.
TEST(Hangs, ARankThatLeavesBeforeACallOfMessagesIsNamed) {
  for (const Transport transport : {Transport::kAuto, Transport::kNet}) {
    for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kTree, Algorithm::kDoubling}) {
      CommunicatorOptions options;
      options.algorithm = algorithm;
      options.transport = transport;
      const UniqueId id = test::local_id();
      const std::vector<Met> met = as_ranks(3, [&](int rank) {
        const Device device = Device::open("cpu", {.compute_workers = 2});
        const Stream stream = device.stream();
        Communicator comm = Communicator::init(id, 3, rank, device, options);
        const Buffer data = device.alloc(4000, MemoryKind::kPinned);
        comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
        stream.sync();
        if (rank == 1) return;
        comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, stream);
        stream.sync();
      });
      EXPECT_FALSE(met[1].code) << met[1].text;
      for (const std::size_t rank : {0U, 2U}) {
        EXPECT_EQ(met[rank].code, ErrorCode::kRankLost) << algorithm_name(algorithm);
        EXPECT_NE(met[rank].text.find("rank 1 has left the communicator"), std::string::npos) << met[rank].text;
      }
    }
  }
}

// All entries of this process's ledger are taken, so reports must ask the ranks instead of reading their entries.
TEST(Hangs, RanksWithoutALedgerEntryAreAsked) {
  std::vector<std::unique_ptr<transport::LedgerSlot>> slots;
  for (int i = 0; i < transport::kLedgerEntries; ++i)
    slots.push_back(std::make_unique<transport::LedgerSlot>(
        transport::LedgerSlot::Identity{1, i, transport::kLedgerEntries, "none"}));
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(100);
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  const std::vector<Met> met = as_ranks(2, [&](int rank) {
    const Stream stream = devices[0].stream();
    comms[static_cast<std::size_t>(rank)].barrier(stream);
    stream.sync();
    if (rank == 1) return;
    comms[0].barrier(stream);
    stream.sync();
  });
  EXPECT_EQ(met[0].code, ErrorCode::kTimeout);
  for (const char* words : {"in barrier, call 2 for rank 1 (it ended barrier, call 1, ", "is outside Slipstream since"})
    EXPECT_NE(met[0].text.find(words), std::string::npos) << met[0].text;
}

// The report distinguishes: rank 1 is outside, has enqueued the call but its stream waits, or has failed.
TEST(Hangs, ADeadlineSaysWhatTheOtherIsDoing) {
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(100);
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  const Stream first = devices[0].stream(StreamFlags::kNonBlocking),
               second = devices[1].stream(StreamFlags::kNonBlocking);
  const Buffer word = devices[1].alloc(4);
  devices[1].fill(word, 0);
  devices[1].sync();  // `second` does not wait for the legacy stream
  second.wait_value(word, 1);
  comms[1].barrier(second);
  comms[0].barrier(first);
  try {
    first.sync();
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    for (const char* words :
         {"rank 1 (it has enqueued call 1, but its stream has not reached it", "has made no call since it joined"})
      EXPECT_NE(text.find(words), std::string::npos) << text;
  }
  const Stream opener = devices[1].stream(StreamFlags::kNonBlocking);
  opener.write_value(word, 1);
  try {
    second.sync();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("rank 0 waited 0.1 s"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace slip::test_hangs
