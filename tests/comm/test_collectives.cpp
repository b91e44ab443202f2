// Collectives between ranks of one host, as threads and as processes. One thread computes the expected results.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "cpu_ranks.hpp"
#include "slip/communicator.hpp"
#include "slip/trace.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"

namespace slip::test_collectives {
namespace {

using test::as_ranks;
using test::Bytes;
using test::expect_no_errors;
using test::fails;
using test::kShare;
using test::Met;
using test::Rank;
using test::RankProcess;
using test::reduced;
using test::values;
using test::with_ranks;

// Sizes just below and above each limit: of a slot, a box, one chunk, two chunks; and many chunks.
constexpr std::uint64_t kElements[] = {0, 1, 3, 10, 11, 1000, 4096, 4097, 9001, 131'072, 131'075, 400'001};

class Sizes : public testing::TestWithParam<int> {};

TEST_P(Sizes, ReductionsGiveWhatOneThreadComputes) {
  const int nranks = GetParam();
  expect_no_errors(with_ranks(nranks, [&](Rank& rank) {
    for (const std::uint64_t elements : kElements) {
      if (kShare > 1 && nranks > 3 && elements > 10'000) continue;
      SCOPED_TRACE(testing::Message() << elements << " elements");
      std::vector<Bytes> all, blocks;
      for (int i = 0; i < nranks; ++i) {
        all.push_back(values(DataType::kF32, elements * static_cast<unsigned>(nranks), static_cast<unsigned>(i)));
        blocks.emplace_back(all.back().begin(), all.back().begin() + static_cast<std::ptrdiff_t>(elements * 4));
      }
      const auto me = static_cast<std::size_t>(rank.comm.rank());
      const std::size_t bytes = elements * 4;
      const Bytes sum = reduced(DataType::kF32, ReduceOp::kSum, blocks);
      const Buffer in = rank.upload(all[me]), out = rank.upload(Bytes(bytes));
      rank.comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, rank.stream);
      EXPECT_EQ(rank.download(out, bytes), sum);
      const int root = nranks - 1;
      const Buffer rooted = rank.upload(Bytes(bytes));
      rank.comm.reduce(rooted.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, root, rank.stream);
      EXPECT_EQ(rank.download(rooted, bytes), rank.comm.rank() == root ? sum : Bytes(bytes));
      rank.comm.reduce_scatter(out.slice(0, bytes), in.slice(0, bytes * static_cast<std::size_t>(nranks)),
                               DataType::kF32, ReduceOp::kSum, rank.stream);
      std::vector<Bytes> mine;
      for (const Bytes& one : all)
        mine.emplace_back(one.begin() + static_cast<std::ptrdiff_t>(me * bytes),
                          one.begin() + static_cast<std::ptrdiff_t>((me + 1) * bytes));
      EXPECT_EQ(rank.download(out, bytes), reduced(DataType::kF32, ReduceOp::kSum, mine));
    }
  }));
}

TEST_P(Sizes, CopiesArriveWhereTheyBelong) {
  const int nranks = GetParam();
  const auto n = static_cast<std::size_t>(nranks);
  expect_no_errors(with_ranks(nranks, [&](Rank& rank) {
    const auto me = static_cast<std::size_t>(rank.comm.rank());
    for (const std::uint64_t elements : kElements) {
      const std::size_t bytes = elements + elements / 2;  // odd ones, too
      SCOPED_TRACE(testing::Message() << bytes << " bytes");
      const auto block = [&](std::size_t from, std::size_t to) {
        return values(DataType::kU8, bytes, static_cast<unsigned>(100 + from * n + to));
      };
      const auto joined = [&](const std::function<Bytes(std::size_t)>& piece) {
        Bytes whole;
        for (std::size_t i = 0; i < n; ++i) {
          const Bytes one = piece(i);
          whole.insert(whole.end(), one.begin(), one.end());
        }
        return whole;
      };
      const std::size_t root = n / 2;
      const Buffer one = rank.upload(block(me, 0)), out = rank.upload(Bytes(bytes)),
                   many = rank.upload(Bytes(bytes * n));
      const Buffer blocks = rank.upload(joined([&](std::size_t to) { return block(me, to); }));
      rank.comm.broadcast(out.slice(0, bytes), one.slice(0, bytes), static_cast<int>(root), rank.stream);
      EXPECT_EQ(rank.download(out, bytes), block(root, 0));
      rank.comm.all_gather(many.slice(0, bytes * n), one.slice(0, bytes), rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), joined([&](std::size_t from) { return block(from, 0); }));
      rank.comm.all_to_all(many.slice(0, bytes * n), blocks.slice(0, bytes * n), rank.stream);
      EXPECT_EQ(rank.download(many, bytes * n), joined([&](std::size_t from) { return block(from, me); }));
      rank.comm.scatter(out.slice(0, bytes), blocks.slice(0, bytes * n), static_cast<int>(root), rank.stream);
      EXPECT_EQ(rank.download(out, bytes), block(root, me));
      const Buffer gathered = rank.upload(Bytes(bytes * n));
      rank.comm.gather(gathered.slice(0, bytes * n), one.slice(0, bytes), static_cast<int>(root), rank.stream);
      EXPECT_EQ(rank.download(gathered, bytes * n),
                me == root ? joined([&](std::size_t from) { return block(from, 0); }) : Bytes(bytes * n));
      rank.comm.barrier(rank.stream);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Sizes, testing::Values(1, 2, 3, 5), testing::PrintToStringParamName());

TEST(Collectives, EveryTypeAndOperation) {
  for (const DataType type : kReducedTypes) {
    for (const ReduceOp op : kReduceOps) {
      if (op == ReduceOp::kPreMulSum) continue;
      SCOPED_TRACE(testing::Message() << data_type_name(type) << " " << reduce_op_name(op));
      expect_no_errors(with_ranks(3, [&](Rank& rank) {
        for (const std::uint64_t elements : {std::uint64_t{5}, std::uint64_t{999}, std::uint64_t{70'001}}) {
          std::vector<Bytes> all;
          for (unsigned i = 0; i < 3; ++i) all.push_back(values(type, elements, i));
          const std::size_t bytes = all.front().size();
          const Buffer both = rank.upload(all[static_cast<std::size_t>(rank.comm.rank())]);  // in place
          rank.comm.all_reduce(both.slice(0, bytes), both.slice(0, bytes), type, op, rank.stream);
          EXPECT_EQ(rank.download(both, bytes), reduced(type, op, all));
        }
      }));
    }
  }
}

TEST(Collectives, EachRankHasAFactorOfItsOwn) {
  expect_no_errors(with_ranks(3, [&](Rank& rank) {
    for (const std::uint64_t elements : {std::uint64_t{2}, std::uint64_t{50'000}}) {
      const std::vector<float> ones(elements, 1.0F);
      Bytes bytes(elements * 4);
      std::memcpy(bytes.data(), ones.data(), bytes.size());
      const Buffer in = rank.upload(bytes), out = rank.upload(bytes);
      rank.comm.all_reduce_scaled(out, in, DataType::kF32, std::pow(10.0, rank.comm.rank()), rank.stream);
      const Bytes got = rank.download(out, bytes.size());
      for (std::uint64_t i = 0; i < elements; ++i) {
        float value = 0;
        std::memcpy(&value, got.data() + i * 4, 4);
        ASSERT_EQ(value, 111.0F) << i;
      }
    }
  }));
}

TEST(Collectives, FactorsApplyToReduceAndReduceScatter) {
  expect_no_errors(with_ranks(3, [&](Rank& rank) {
    const ReduceSpec scaled = premul_sum(std::pow(10.0, rank.comm.rank()));
    for (const std::uint64_t elements : {std::uint64_t{3}, std::uint64_t{60'000}}) {
      const std::vector<float> ones(elements, 1.0F), wanted(elements, 111.0F);
      const std::uint64_t bytes = elements * 4;
      Bytes from(bytes), sums(bytes);
      std::memcpy(from.data(), ones.data(), bytes);
      std::memcpy(sums.data(), wanted.data(), bytes);
      const Buffer in = rank.upload(from), out = rank.upload(from);
      rank.comm.reduce(out, in, DataType::kF32, scaled, 1, rank.stream);
      const Bytes reduced_here = rank.download(out, bytes);
      EXPECT_EQ(reduced_here == sums, rank.comm.rank() == 1);
      rank.comm.reduce_scatter(out.slice(0, bytes / 3), in, DataType::kF32, scaled, rank.stream);
      Bytes block = rank.download(out, bytes);
      block.resize(bytes / 3), sums.resize(bytes / 3);
      EXPECT_EQ(block, sums);
    }
  }));
}

// Calls of all sizes without a sync in between: slots, boxes and halves of staging memory are reused many times.
TEST(Collectives, ManyCallsUnderWayAtOnce) {
  const unsigned calls = 400 / kShare + 20;
  expect_no_errors(with_ranks(3, [&](Rank& rank) {
    std::vector<Buffer> buffers;
    std::mt19937 random(7);  // the same on all ranks
    std::vector<std::uint64_t> sizes;
    for (unsigned i = 0; i < calls; ++i) {
      const std::uint64_t elements = random() % 4 == 0 ? 20'000 + random() % 200'000 : random() % 3000;
      sizes.push_back(elements);
      Bytes bytes(elements * 4 + 4);
      for (std::uint64_t k = 0; k < elements; ++k) {
        const auto value = static_cast<std::uint32_t>(i + k + static_cast<unsigned>(rank.comm.rank()));
        std::memcpy(bytes.data() + k * 4, &value, 4);
      }
      buffers.push_back(rank.upload(bytes));
      const Range range = buffers.back().slice(0, elements * 4);
      rank.comm.all_reduce(range, range, DataType::kU32, ReduceOp::kSum, rank.stream);
    }
    rank.stream.sync();
    for (unsigned i = 0; i < calls; ++i) {
      const HostView<const std::uint32_t> view = buffers[i].host_read<std::uint32_t>();
      for (std::uint64_t k = 0; k < sizes[i]; ++k) ASSERT_EQ(view[k], 3 * (i + k) + 3) << "call " << i << " at " << k;
    }
  }));
}

// A root that waits for no rank gets ahead of its receivers, but by no more calls than there are boxes.
TEST(Collectives, ARootMayBeFarAhead) {
  const unsigned calls = 2000 / kShare;
  expect_no_errors(with_ranks(3, [&](Rank& rank) {
    for (const std::size_t elements : {std::size_t{2}, std::size_t{1000}}) {
      const Buffer data = rank.upload(Bytes(elements * 4 * calls));
      if (rank.comm.rank() == 0) {
        const HostView<std::uint32_t> view = const_cast<Buffer&>(data).host_write<std::uint32_t>();
        for (std::size_t i = 0; i < view.size(); ++i) view[i] = static_cast<std::uint32_t>(i);
      }
      for (unsigned call = 0; call < calls; ++call) {
        const Range range = data.slice(call * elements * 4, elements * 4);
        rank.comm.broadcast(range, range, 0, rank.stream);
      }
      rank.stream.sync();
      const HostView<const std::uint32_t> view = data.host_read<std::uint32_t>();
      for (std::size_t i = 0; i < view.size(); ++i) ASSERT_EQ(view[i], i);
    }
  }));
}

// N1, N2: a call returns when it is enqueued; what its stream does later waits for it.
TEST(Collectives, ACallIsAnOpOfItsStream) {
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  const Stream streams[] = {devices[0].stream(), devices[1].stream()};
  Buffer data[] = {devices[0].alloc(4, MemoryKind::kPinned), devices[1].alloc(4, MemoryKind::kPinned)};
  std::atomic<bool> passed{false};
  *data[0].host_write<int>().begin() = 1;
  *data[1].host_write<int>().begin() = 2;
  comms[0].all_reduce(data[0], data[0], DataType::kI32, ReduceOp::kSum, streams[0]);
  streams[0].host([&] { passed.store(true); });
  EXPECT_FALSE(streams[0].query());
  EXPECT_FALSE(streams[0].sync_for(std::chrono::milliseconds(5)));
  EXPECT_FALSE(passed.load());
  comms[1].all_reduce(data[1], data[1], DataType::kI32, ReduceOp::kSum, streams[1]);
  streams[0].sync();
  streams[1].sync();
  EXPECT_TRUE(passed.load());
  EXPECT_EQ(data[0].host_read<int>()[0], 3);
  EXPECT_EQ(data[1].host_read<int>()[0], 3);
}

// The thread that waits for room in the stream holds the lock of the communicator. The host function must be refused
// without it.
TEST(Collectives, AHostFunctionIsRefusedWhileACallWaitsForRoom) {
  const Device device = Device::open("cpu", {.compute_workers = 2, .queue_depth = 16});
  const std::vector<Device> devices{device};
  std::vector<Communicator> comms = Communicator::init_all(devices, {});
  const Stream stream = device.stream();
  const Buffer data = device.alloc(64, MemoryKind::kPinned);
  std::atomic<int> issued{0};
  stream.host([&] {
    for (int known = -1; known != issued.load();) {  // until the stream has no room
      known = issued.load();
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_TRUE(fails([&] { comms[0].barrier(stream); }, ErrorCode::kNotPermitted, {"host function"}));
    EXPECT_TRUE(fails([&] { comms[0].send(data, 0, stream); }, ErrorCode::kNotPermitted, {"host function"}));
  });
  for (; issued < 100; ++issued) comms[0].barrier(stream);
  stream.sync();
}

TEST(Collectives, CallsThatDifferFailOnAllRanks) {
  const std::vector<Met> met = with_ranks(2, [](Rank& rank) {
    const Buffer data = rank.upload(Bytes(80'000));
    const std::size_t bytes = rank.comm.rank() == 0 ? 40'000 : 80;
    rank.comm.all_reduce(data.slice(0, bytes), data.slice(0, bytes), DataType::kF32, ReduceOp::kSum, rank.stream);
    rank.stream.sync();
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    for (const char* words : {"all_reduce of 10000 F32 by sum, call 1", "all_reduce of 20 F32", "rank 0", "rank 1"})
      EXPECT_NE(one.text.find(words), std::string::npos) << one.text;
  }
}

TEST(Collectives, TheMissingRankIsNamed) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(100);
  const std::vector<Met> met = with_ranks(
      3,
      [](Rank& rank) {
        rank.comm.barrier(rank.stream);
        if (rank.comm.rank() == 1) return;
        const Buffer data = rank.upload(Bytes(64));
        rank.comm.all_reduce(data, data, DataType::kI32, ReduceOp::kMax, rank.stream);
        rank.stream.sync();
      },
      options);
  EXPECT_FALSE(met[1].code);
  for (const std::size_t rank : {0U, 2U}) {
    EXPECT_EQ(met[rank].code, ErrorCode::kTimeout);
    for (const char* words : {"all_reduce of 16 I32 by max, call 2", "rank 1 (it ended barrier, call 1, ",
                              "and is outside Slipstream since"})
      EXPECT_NE(met[rank].text.find(words), std::string::npos) << met[rank].text;
  }
}

TEST(Collectives, AbortEndsWhatIsUnderWay) {
  const std::vector<Met> met = with_ranks(2, [](Rank& rank) {
    if (rank.comm.rank() == 1) return;
    rank.comm.barrier(rank.stream);
    std::thread other([&] { rank.comm.abort(); });
    other.join();
    rank.stream.sync();
  });
  EXPECT_EQ(met[0].code, ErrorCode::kAborted) << met[0].text;
}

TEST(Collectives, OpsCarryTheNameOfTheCommunicator) {
  const Device device = Device::open("cpu");
  const Stream stream = device.stream({.name = "loads"});
  Communicator comm = Communicator::init(device, {.name = "tp"});
  const Buffer data = device.alloc(64, MemoryKind::kPinned);
  EXPECT_TRUE(
      fails([&] { comm.broadcast(data, data, 3, stream); }, ErrorCode::kInvalidValue, {"tp.broadcast", "root 3"}));
  Trace trace;
  comm.all_reduce(data, data, DataType::kF32, ReduceOp::kSum, stream);
  stream.sync();
  trace.stop();
  const TraceData recorded = trace.data();
  const std::vector<TraceSpan> spans = recorded.spans();
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans.front().name, "tp.all_reduce");
}

TEST(Collectives, BadArgumentsAreRefusedWithTheirNumbers) {
  expect_no_errors(with_ranks(1, [](Rank& rank) {
    const Buffer data = rank.upload(Bytes(64));
    EXPECT_TRUE(
        fails([&] { rank.comm.broadcast(data, data, 3, rank.stream); }, ErrorCode::kInvalidValue, {"root 3", "1"}));
    EXPECT_TRUE(
        fails([&] { rank.comm.all_reduce(data.slice(0, 8), data, DataType::kF32, ReduceOp::kSum, rank.stream); },
              ErrorCode::kInvalidValue, {"64", "8"}));
    EXPECT_TRUE(fails([&] { rank.comm.all_reduce(data, data, DataType::kF32, ReduceOp::kPreMulSum, rank.stream); },
                      ErrorCode::kInvalidValue, {"all_reduce_scaled"}));
    for (const double factor : {-1.0, 256.0, std::nan("")})
      EXPECT_TRUE(fails([&] { rank.comm.all_reduce_scaled(data, data, DataType::kU8, factor, rank.stream); },
                        ErrorCode::kInvalidValue, {"U8"}))
          << factor;
    EXPECT_TRUE(fails([&] { rank.comm.all_reduce(data, data, DataType::kBool, ReduceOp::kSum, rank.stream); },
                      ErrorCode::kInvalidValue, {"BOOL"}));
    EXPECT_TRUE(fails(
        [&] { rank.comm.all_reduce(data.slice(0, 6), data.slice(0, 6), DataType::kF32, ReduceOp::kSum, rank.stream); },
        ErrorCode::kInvalidValue, {"6"}));
  }));
  EXPECT_TRUE(fails(
      [] {
        const std::vector<Device> devices{Device::open("sim:h200"), Device::open("sim:h200")};
        Communicator::init_all(devices);
      },
      ErrorCode::kUnsupported, {"ranks 0 and 1", "Device::open_all"}));
}

// One rank; each rank is a process.
SLIP_CHILD(Collectives, Sum) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);  // as the launcher says
    if (comm.rank() != info.rank || comm.nranks() != info.nranks) return "another rank";
    const Stream stream = device.stream();
    for (const std::size_t elements : {1U, 100U, 5000U, 300'000U}) {
      Buffer data = device.alloc(elements * 4, MemoryKind::kPinned);
      for (float& one : data.host_write<float>()) one = static_cast<float>(info.rank + 1);
      comm.all_reduce(data, data, DataType::kF32, ReduceOp::kSum, stream);
      stream.sync();
      for (const float one : data.host_read<float>()) {
        if (one != static_cast<float>(info.nranks * (info.nranks + 1) / 2)) return "wrong: " + std::to_string(one);
      }
    }
    return "fine";
  });
}

TEST(Collectives, RanksAreProcesses) {
  for (const int nranks : {2, 4}) {
    const UniqueId id = test::local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < nranks; ++rank) ranks.emplace_back("Collectives.Sum", id, nranks, rank);
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "fine");
  }
}

SLIP_CHILD(Collectives, SumUntilOneIsKilled) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    const Buffer data = device.alloc(400'000, MemoryKind::kPinned);
    for (int call = 0;; ++call) {
      if (info.rank == 2 && call == 50) ::raise(SIGKILL);
      comm.all_reduce(data, data, DataType::kF32, ReduceOp::kSum, stream);
      stream.sync();
    }
  });
}

TEST(Collectives, AKilledRankIsReportedToTheOthers) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("Collectives.SumUntilOneIsKilled", id, 3, rank);
  for (const std::size_t rank : {0U, 1U}) {
    const std::string report = ranks[rank].report();
    EXPECT_NE(report.find("rank 2 is gone"), std::string::npos) << report;
  }
}

}  // namespace
}  // namespace slip::test_collectives
