// Communicators that were moved from or finalized, and messages that no rank received.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cpu_ranks.hpp"
#include "support/errors.hpp"

namespace slip::test_ends {
namespace {

using test::fails;
using test::Met;

TEST(MovedFrom, EveryCallThrows) {
  const Device device = Device::open("cpu", {.compute_workers = 1});
  Communicator comm = Communicator::init(device);
  Communicator taken = std::move(comm);
  const Stream stream = device.stream();
  const Buffer buffer = device.alloc(64, MemoryKind::kPinned);
  const Range data = buffer;
  const std::function<void()> calls[] = {
      [&] { static_cast<void>(comm.rank()); },
      [&] { static_cast<void>(comm.nranks()); },
      [&] { static_cast<void>(comm.allocate(64)); },
      [&] { comm.all_reduce(data, data, DataType::kF32, ReduceOp::kSum, stream); },
      [&] { comm.all_reduce_scaled(data, data, DataType::kF32, 2, stream); },
      [&] { comm.reduce(data, data, DataType::kF32, ReduceOp::kSum, 0, stream); },
      [&] { comm.reduce_scatter(data, data, DataType::kF32, ReduceOp::kSum, stream); },
      [&] { comm.broadcast(data, data, 0, stream); },
      [&] { comm.all_gather(data, data, stream); },
      [&] { comm.gather(data, data, 0, stream); },
      [&] { comm.scatter(data, data, 0, stream); },
      [&] { comm.all_to_all(data, data, stream); },
      [&] {
        comm.all_to_all_v({&data, 1}, {&data, 1}, stream);
      },
      [&] { comm.barrier(stream); },
      [&] { comm.send(data, 0, stream); },
      [&] { comm.recv(data, 0, stream); },
      [&] {
        Group group;
        comm.send(data, 0, stream);
      },
      [&] { static_cast<void>(comm.split(0)); },
      [&] { static_cast<void>(comm.shrink()); },
      [&] { comm.finalize(); },
  };
  for (const auto& call : calls) EXPECT_TRUE(fails(call, ErrorCode::kInvalidHandle, {"moved from"}));
  ASSERT_TRUE(comm.error());
  EXPECT_EQ(comm.error()->code(), ErrorCode::kInvalidHandle);
  comm.abort();
  comm.fail(ErrorCode::kIo, "nothing happens");
  EXPECT_FALSE(taken.error());
  stream.sync();
  comm = std::move(taken);
  comm.barrier(stream);
  stream.sync();
  comm.finalize();
}

TEST(Finalized, ShrinkIsRefusedAtOnce) {
  CommunicatorOptions options;
  options.init_timeout = std::chrono::minutes(5);  // longer than the test may take
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  test::expect_no_errors(test::as_ranks(2, [&](int rank) {
    Communicator& comm = comms[static_cast<std::size_t>(rank)];
    comm.finalize();
    EXPECT_TRUE(fails([&] { static_cast<void>(comm.shrink()); }, ErrorCode::kInvalidHandle, {"finalized"}));
    EXPECT_TRUE(fails([&] { static_cast<void>(comm.split(0)); }, ErrorCode::kInvalidHandle, {"finalized"}));
    EXPECT_TRUE(fails([&] { comm.finalize(); }, ErrorCode::kInvalidHandle, {"finalized"}));
  }));
}

class Unmatched : public testing::TestWithParam<Transport> {
 protected:
  std::vector<Met> send_without_receive(std::size_t bytes, int matched, std::chrono::milliseconds timeout) {
    CommunicatorOptions options;
    options.transport = GetParam();
    options.timeout = timeout;
    const std::vector<Device> devices(3, device_);
    std::vector<Communicator> comms = Communicator::init_all(devices, options);
    return test::as_ranks(3, [&](int rank) {
      Communicator& comm = comms[static_cast<std::size_t>(rank)];
      const Stream stream = device_.stream();
      const Buffer data = device_.alloc(bytes, MemoryKind::kPinned);
      for (int i = 0; i < matched; ++i) {
        if (rank == 0) comm.send(data.slice(0, 16), 2, stream);
        if (rank == 2) comm.recv(data.slice(0, 16), 0, stream);
      }
      if (rank == 0) comm.send(data, 2, stream);
      stream.sync();
      comm.finalize();
    });
  }
  const Device device_ = Device::open("cpu", {.compute_workers = 2});
};
INSTANTIATE_TEST_SUITE_P(Through, Unmatched, testing::Values(Transport::kAuto, Transport::kNet),
                         [](const auto& one) { return one.param == Transport::kNet ? "Net" : "Auto"; });

// So small that every transport buffers it.
TEST_P(Unmatched, ASmallMessageIsNamedAtTheEnd) {
  for (const int matched : {0, 3}) {
    const std::vector<Met> met = send_without_receive(20, matched, std::chrono::minutes(5));
    const std::string text = fmt::format(
        "rank 0 sent {} messages to rank 2, which received {}: the last one, of 20 bytes", matched + 1, matched);
    for (const Met& one : met) {
      EXPECT_EQ(one.code, ErrorCode::kMismatch);
      EXPECT_NE(one.text.find(text), std::string::npos) << one.text;
    }
  }
}

// Either the transport buffers the message and finalize() reports it, or the send fails at its deadline. No rank
// succeeds.
TEST_P(Unmatched, ALargeMessageIsAnErrorOfAllRanks) {
  const std::vector<Met> met = send_without_receive(1 << 20, 1, std::chrono::milliseconds(500));
  for (const Met& one : met) {
    EXPECT_TRUE(one.code == ErrorCode::kMismatch || one.code == ErrorCode::kTimeout) << one.text;
    const bool names = one.text.find("1048576 bytes") != std::string::npos;
    EXPECT_TRUE(names || (one.code == ErrorCode::kTimeout && &one != &met[0])) << one.text;
  }
}

TEST_P(Unmatched, WithAllReceivedTheEndIsQuiet) {
  CommunicatorOptions options;
  options.transport = GetParam();
  const std::vector<Device> devices(2, device_);
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  test::expect_no_errors(test::as_ranks(2, [&](int rank) {
    Communicator& comm = comms[static_cast<std::size_t>(rank)];
    const Stream stream = device_.stream();
    const Buffer out = device_.alloc(1 << 20, MemoryKind::kPinned), in = device_.alloc(1 << 20, MemoryKind::kPinned),
                 own = device_.alloc(8, MemoryKind::kPinned);
    for (int i = 0; i < 3; ++i) {
      Group group;
      comm.send(out, 1 - rank, stream);
      comm.recv(in, 1 - rank, stream);
      comm.send(out.slice(0, 8), rank, stream);
      comm.recv(own, rank, stream);
      group.end();
    }
    comm.finalize();
  }));
}

}  // namespace
}  // namespace slip::test_ends
