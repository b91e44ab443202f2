// The life of a communicator: split, finalize, abort, errors and destruction, in any order.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <thread>

#include "base/clock.hpp"
#include "sums.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip::test_life {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using test::Adder;
using test::as_ranks;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::RankProcess;

// Each rank in a thread, with a communicator of all.
std::vector<Met> with_comms(int count, const std::function<void(Communicator&, const Adder&)>& body,
                            const CommunicatorOptions& options = {}) {
  const std::vector<Device> devices(static_cast<std::size_t>(count), Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  return as_ranks(
      count, [&](int rank) { body(comms[static_cast<std::size_t>(rank)], Adder()); },
      [&](int rank) { comms[static_cast<std::size_t>(rank)].abort(); });
}

// Two rows of three. Calls that the parent has enqueued meanwhile still work.
void use_rows_and_columns(Communicator& comm, const Adder& adder) {
  const Device& device = adder.device();
  const Stream streams[] = {device.stream(), device.stream(), device.stream()};
  const auto rank = static_cast<std::uint32_t>(comm.rank());
  std::vector<Buffer> data;
  for (int i = 0; i < 3; ++i) data.push_back(device.alloc(400'000, MemoryKind::kPinned));
  for (Buffer& one : data) std::ranges::fill(one.host_write<std::uint32_t>().span(), 1U << (4 * rank));
  const auto add = [&](Communicator& among, std::size_t which) {
    among.all_reduce(data[which], data[which], DataType::kU32, ReduceOp::kSum, streams[which]);
  };
  add(comm, 2);
  std::optional<Communicator> row = comm.split(static_cast<int>(rank / 3), static_cast<int>(rank));
  std::optional<Communicator> column = comm.split(static_cast<int>(rank % 3), static_cast<int>(rank));
  ASSERT_TRUE(row && column);
  EXPECT_EQ(row->nranks(), 3);
  EXPECT_EQ(row->rank(), comm.rank() % 3);
  EXPECT_EQ(column->nranks(), 2);
  EXPECT_EQ(column->rank(), comm.rank() / 3);
  add(*row, 0);
  add(*column, 1);
  for (const Stream& stream : streams) stream.sync();
  EXPECT_EQ(data[0].host_read<std::uint32_t>()[99'999], 0x111U << (12 * (rank / 3)));
  EXPECT_EQ(data[1].host_read<std::uint32_t>()[99'999], 0x1001U << (4 * (rank % 3)));
  EXPECT_EQ(data[2].host_read<std::uint32_t>()[99'999], 0x111111U);
}

TEST(Split, RowsAndColumnsAtOnce) { expect_no_errors(with_comms(6, use_rows_and_columns)); }

SLIP_CHILD(Split, RowsAndColumns) {
  test::play([](const transport::LaunchInfo&) -> std::string {
    const Adder adder;
    Communicator comm = Communicator::init(adder.device());
    use_rows_and_columns(comm, adder);
    return testing::Test::HasFailure() ? "wrong" : "fine";
  });
}

TEST(Split, RanksAreProcesses) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 6; ++rank) ranks.emplace_back("Split.RowsAndColumns", id, 6, rank);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "fine");
}

TEST(Split, KeysOrderAndNoColourGetsNone) {
  expect_no_errors(with_comms(5, [](Communicator& comm, const Adder& adder) {
    const int rank = comm.rank();
    // Of 0, 1, 3, 4 with keys 1, 1, 0, -5: 4, 3, 0, 1.
    const int keys[] = {1, 1, 9, 0, -5}, places[] = {2, 3, -1, 1, 0};
    std::optional<Communicator> part = comm.split(rank == 2 ? kNoColor : 7, keys[rank]);
    EXPECT_EQ(part.has_value(), rank != 2);
    if (part) {
      EXPECT_EQ(part->rank(), places[rank]);
      EXPECT_EQ(adder.wrong_sum(*part), "");
    }
    std::optional<Communicator> alone = comm.split(rank);
    EXPECT_EQ(alone->nranks(), 1);
    EXPECT_EQ(adder.wrong_sum(*alone), "");
    EXPECT_FALSE(comm.split(kNoColor));
  }));
}

TEST(Split, OfASplit) {
  expect_no_errors(with_comms(6, [](Communicator& comm, const Adder& adder) {
    std::optional<Communicator> three = comm.split(comm.rank() % 2);
    std::optional<Communicator> two = three->split(three->rank() == 0 ? 1 : 0, -three->rank());
    EXPECT_EQ(two->nranks(), three->rank() == 0 ? 1 : 2);
    EXPECT_EQ(two->rank(), three->rank() == 0 ? 0 : 2 - three->rank());
    three.reset();  // other communicators of the same ranks may still run calls
    EXPECT_EQ(adder.wrong_sum(*two), "");
    EXPECT_EQ(adder.wrong_sum(comm), "");
  }));
}

TEST(Split, EndsInAnyOrder) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  const std::vector<Device> devices(4, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  expect_no_errors(as_ranks(4, [&](int rank) {
    std::mt19937 random(seed + static_cast<unsigned>(rank));
    const Adder adder;
    std::vector<std::optional<Communicator>> all;
    all.emplace_back(std::move(comms[static_cast<std::size_t>(rank)]));
    for (int i = 0; i < 4; ++i) all.push_back(all[static_cast<std::size_t>(i / 2)]->split(rank / 2, rank));
    const Buffer data = adder.device().alloc(400'000, MemoryKind::kPinned);
    for (auto& one : all) one->all_reduce(data, data, DataType::kU32, ReduceOp::kMax, adder.stream());
    std::ranges::shuffle(all, random);
    for (auto& one : all) one.reset();  // with calls under way
    adder.stream().sync();
  }));
}

TEST(Finalize, WaitsForAllAndLeavesOnlyTheEnd) {
  std::atomic<int> done{0};
  expect_no_errors(with_comms(3, [&](Communicator& comm, const Adder& adder) {
    const Buffer data = adder.device().alloc(400'000, MemoryKind::kPinned);
    comm.all_reduce(data, data, DataType::kU32, ReduceOp::kMax, adder.stream());
    adder.stream().host([&] { done.fetch_add(1); });
    adder.stream().sync();
    comm.finalize();
    EXPECT_EQ(done.load(), 3);
    EXPECT_TRUE(fails([&] { comm.barrier(adder.stream()); }, ErrorCode::kInvalidHandle, {"finalized"}));
    EXPECT_TRUE(fails([&] { comm.split(0); }, ErrorCode::kInvalidHandle, {"finalized"}));
    EXPECT_TRUE(fails([&] { comm.finalize(); }, ErrorCode::kInvalidHandle, {"finalized"}));
    EXPECT_FALSE(comm.error());
  }));
}

TEST(Errors, TheFirstStaysAndEveryCallThrowsIt) {
  std::atomic<int> summed{0}, failed{0};
  expect_no_errors(with_comms(3, [&](Communicator& comm, const Adder& adder) {
    EXPECT_FALSE(comm.error());
    EXPECT_EQ(adder.wrong_sum(comm), "");
    summed.fetch_add(1);
    // A rank that is still in that call would get the abort there.
    const std::int64_t deadline = base::deadline_after(60'000'000'000);
    while (summed.load() < 3 && base::now_ns() < deadline) std::this_thread::yield();
    // A call that rank 1 never makes.
    if (comm.rank() == 1) {
      comm.abort();
    } else {
      EXPECT_TRUE(fails([&] { static_cast<void>(adder.wrong_sum(comm)); }, ErrorCode::kAborted, {"rank 1"}));
    }
    const std::optional<Error> first = comm.error();
    ASSERT_TRUE(first);
    EXPECT_EQ(first->code(), ErrorCode::kAborted);
    const std::string text = first->what();
    for (const auto& call : std::vector<std::function<void()>>{[&] { comm.barrier(adder.stream()); },
                                                               [&] { comm.split(0); }, [&] { comm.finalize(); }}) {
      EXPECT_TRUE(fails(call, first->code(), {text})) << text;
    }
    EXPECT_EQ(comm.error()->what(), text);
    failed.fetch_add(1);
  }));
  EXPECT_EQ(failed.load(), 3);
}

TEST(Errors, OfAPartStayThere) {
  expect_no_errors(with_comms(4, [](Communicator& comm, const Adder& adder) {
    std::optional<Communicator> half = comm.split(comm.rank() / 2);
    if (comm.rank() == 3) half->abort();
    const Adder other(adder.device());  // another stream: what fails stays failed
    if (comm.rank() == 2) {
      EXPECT_TRUE(fails([&] { static_cast<void>(other.wrong_sum(*half)); }, ErrorCode::kAborted));
    } else if (comm.rank() < 2) {
      EXPECT_EQ(adder.wrong_sum(*half), "");
    }
    EXPECT_EQ(adder.wrong_sum(comm), "");
    EXPECT_FALSE(comm.error());
  }));
}

// The other rank, which will be stopped.
SLIP_CHILD(Abort, WaitToBeStopped) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.silence = seconds(80);  // so that only abort ends anything
    const Adder adder;
    Communicator comm = Communicator::init(info.id, info.nranks, info.rank, adder.device(), options);
    if (const std::string wrong = adder.wrong_sum(comm); !wrong.empty()) return wrong;
    char byte = 'x';
    static_cast<void>(!::write(test::kLine, &byte, 1));
    static_cast<void>(adder.wrong_sum(comm, 1'000'000));  // may be stopped after it has joined the call
    return "went on";
  });
}

TEST(Abort, EndsACallWhosePeerIsStopped) {
  const UniqueId id = test::local_id();
  const RankProcess other("Abort.WaitToBeStopped", id, 2, 1);
  CommunicatorOptions options;
  options.silence = seconds(80);
  const Adder adder;
  {
    Communicator comm = Communicator::init(id, 2, 0, adder.device(), options);
    EXPECT_EQ(adder.wrong_sum(comm), "");
    ASSERT_EQ(other.hear(1), "x");
    other.signal(SIGSTOP);
    const Buffer data = adder.device().alloc(4'000'000, MemoryKind::kPinned);
    comm.all_reduce(data, data, DataType::kU32, ReduceOp::kSum, adder.stream());
    EXPECT_FALSE(adder.stream().sync_for(milliseconds(5)));
    comm.abort();
    EXPECT_TRUE(fails([&] { adder.stream().sync(); }, ErrorCode::kAborted));
    EXPECT_EQ(comm.error()->code(), ErrorCode::kAborted);
  }  // ends, too
  other.send('x');
  other.signal(SIGCONT);
  EXPECT_NE(other.report().find("rank 0"), std::string::npos);
}

TEST(Options, WhatCannotBeIsRefused) {
  const Device device = Device::open("cpu", {.compute_workers = 2});
  const auto refused = [&](const std::function<void(CommunicatorOptions&)>& change,
                           std::initializer_list<std::string_view> words) {
    CommunicatorOptions options;
    change(options);
    const std::vector<Device> devices(2, device);
    return fails([&] { Communicator::init_all(devices, options); }, ErrorCode::kInvalidValue, words);
  };
  EXPECT_TRUE(refused([](auto& options) { options.timeout = milliseconds(0); }, {"timeout", "0 ms"}));
  EXPECT_TRUE(refused([](auto& options) { options.init_timeout = milliseconds(-5); }, {"init_timeout", "-5 ms"}));
  EXPECT_TRUE(refused([](auto& options) { options.heartbeat = milliseconds(0); }, {"heartbeat", "0 ms"}));
  EXPECT_TRUE(refused([](auto& options) { options.silence = options.heartbeat; }, {"silence", "1000 ms"}));
  EXPECT_TRUE(fails([&] { Communicator::init(test::local_id(), 65'536, 0, device); }, ErrorCode::kUnsupported,
                    {"65536", "65535"}));
  EXPECT_TRUE(
      fails([&] { Communicator::init(UniqueId(), 2, 0, device); }, ErrorCode::kInvalidValue, {"UniqueId is empty"}));
}

// If one rank makes an invalid call, all ranks get the error, because they would wait for it.
std::vector<Met> init_as(const std::function<Communicator(const UniqueId&, int rank, const Device&)>& init) {
  const UniqueId id = test::local_id();
  return as_ranks(3, [&](int rank) { init(id, rank, Device::open("cpu", {.compute_workers = 2})); });
}

TEST(Options, InvalidRanksFailOnAllRanks) {
  for (const int wrong : {-1, 3, 70'000}) {
    for (const Met& one : init_as([&](const UniqueId&id, int rank, const Device&device) {
           return Communicator::init(id, 3, rank == 1 ? wrong : rank, device);
         })) {
      EXPECT_EQ(one.code, ErrorCode::kInvalidValue);
      EXPECT_NE(one.text.find("rank " + std::to_string(wrong) + " of 3"), std::string::npos) << one.text;
    }
  }
  for (const Met& one : init_as([](const UniqueId&id, int rank, const Device&device) {
         return Communicator::init(id, rank == 2 ? 0 : 3, rank, device);
       })) {
    EXPECT_EQ(one.code, ErrorCode::kInvalidValue);
    EXPECT_NE(one.text.find("0 ranks"), std::string::npos) << one.text;
  }
}

TEST(Options, HeartbeatsMustBeTheSame) {
  for (const Met& one : init_as([](const UniqueId&id, int rank, const Device&device) {
         CommunicatorOptions options;
         if (rank == 2) options.silence = seconds(30);
         return Communicator::init(id, 3, rank, device, options);
       })) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    for (const char* words : {"rank 0", "4000 ms", "rank 2", "30000 ms"})
      EXPECT_NE(one.text.find(words), std::string::npos) << one.text;
  }
}

}  // namespace
}  // namespace slip::test_life
