// Sends, receives and groups.
#include <gtest/gtest.h>

#include "cpu_ranks.hpp"
#include "support/errors.hpp"
#include "support/share.hpp"

namespace slip::test_messages {
namespace {

using test::Bytes;
using test::expect_no_errors;
using test::fails;
using test::Met;
using test::Rank;
using test::values;

class Messages : public testing::TestWithParam<Transport> {
 protected:
  static std::vector<Met> with_ranks(int count, const std::function<void(Rank&)>& body,
                                     std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    CommunicatorOptions options;
    options.transport = GetParam();
    options.timeout = timeout;
    return test::with_ranks(count, body, options);
  }
};

Bytes letter(std::size_t bytes, int from, int to) {
  return values(DataType::kU8, bytes, static_cast<unsigned>(1000 + from * 100 + to));
}

TEST_P(Messages, GoFromOneToTheOther) {
  expect_no_errors(with_ranks(3, [](Rank& rank) {
    for (const std::size_t bytes : {0U, 1U, 24U, 25U, 5000U, 32'768U, 32'769U, 600'000U, 9'000'001U}) {
      const Buffer buffer = rank.upload(rank.comm.rank() == 2 ? letter(bytes, 2, 0) : Bytes(bytes));
      if (rank.comm.rank() == 2) rank.comm.send(buffer.slice(0, bytes), 0, rank.stream);
      if (rank.comm.rank() == 0) rank.comm.recv(buffer.slice(0, bytes), 2, rank.stream);
      const Bytes wanted = rank.comm.rank() == 1 ? Bytes(bytes) : letter(bytes, 2, 0);
      EXPECT_EQ(rank.download(buffer, bytes), wanted) << bytes;
    }
  }));
}

// Larger than any transport buffers: without a group each rank would wait for the other's receive.
TEST_P(Messages, CrossInAGroup) {
  expect_no_errors(with_ranks(2, [](Rank& rank) {
    constexpr std::size_t kBytes = std::size_t{test::kShare > 1 ? 6 : 20} << 20;
    const int own = rank.comm.rank(), other = 1 - own;
    const Buffer out = rank.upload(letter(kBytes, own, other)), in = rank.upload(Bytes(kBytes));
    {
      Group group;
      rank.comm.send(out.slice(0, kBytes), other, rank.stream);
      rank.comm.recv(in.slice(0, kBytes), other, rank.stream);
      group.end();
    }
    EXPECT_EQ(rank.download(in, kBytes), letter(kBytes, other, own));
  }));
}

// More messages than a link holds, of odd sizes, also from a rank to itself.
TEST_P(Messages, AreManyInOneGroup) {
  constexpr int kRanks = 3, kEach = 40, kLarge = test::kShare > 1 ? 20 : 10;
  expect_no_errors(with_ranks(kRanks, [](Rank& rank) {
    const int own = rank.comm.rank();
    const auto size = [](int from, int to, int index) {
      return static_cast<std::size_t>((from * 7 + to * 13 + index * 1'777) % 40'000 +
                                      (index % kLarge == 0 ? 700'000 : 0));
    };
    std::vector<Buffer> in, out;
    Group group;
    for (int other = 0; other < kRanks; ++other) {
      for (int i = 0; i < kEach; ++i) {
        out.push_back(rank.upload(letter(size(own, other, i), own, other + i)));
        rank.comm.send(out.back().slice(0, size(own, other, i)), other, rank.stream);
      }
    }
    for (int i = 0; i < kEach; ++i) {
      for (int other = kRanks - 1; other >= 0; --other) {
        in.push_back(rank.upload(Bytes(size(other, own, i))));
        rank.comm.recv(in.back().slice(0, size(other, own, i)), other, rank.stream);
      }
    }
    group.end();
    std::size_t next = 0;
    for (int i = 0; i < kEach; ++i) {
      for (int other = kRanks - 1; other >= 0; --other, ++next)
        EXPECT_EQ(rank.download(in[next], size(other, own, i)), letter(size(other, own, i), other, own + i));
    }
  }));
}

TEST_P(Messages, OfAnySizeFromAllToAll) {
  constexpr int kRanks = 4;
  expect_no_errors(with_ranks(kRanks, [](Rank& rank) {
    const int own = rank.comm.rank();
    const auto size = [](int from, int to) { return static_cast<std::size_t>(from * to * 50'021 + (from + to) % 3); };
    std::vector<Buffer> in, out;
    std::vector<Range> to, from;
    for (int other = 0; other < kRanks; ++other) {
      out.push_back(rank.upload(letter(size(own, other), own, other)));
      in.push_back(rank.upload(Bytes(size(other, own))));
      from.push_back(out.back().slice(0, size(own, other)));
      to.push_back(in.back().slice(0, size(other, own)));
    }
    rank.comm.all_to_all_v(to, from, rank.stream);
    for (int other = 0; other < kRanks; ++other) {
      const auto index = static_cast<std::size_t>(other);
      EXPECT_EQ(rank.download(in[index], size(other, own)), letter(size(other, own), other, own));
    }
    EXPECT_TRUE(fails([&] { rank.comm.all_to_all_v(std::span(to).first(2), from, rank.stream); },
                      ErrorCode::kInvalidValue, {"expected 4"}));
  }));
}

// Collectives between them keep their order.
TEST_P(Messages, AndCollectivesTakeTurns) {
  expect_no_errors(with_ranks(3, [](Rank& rank) {
    const int own = rank.comm.rank(), next = (own + 1) % 3, before = (own + 2) % 3;
    Buffer token = rank.device.alloc(4, MemoryKind::kPinned), came = rank.device.alloc(4, MemoryKind::kPinned);
    token.host_write<int>()[0] = own;
    for (int round = 0; round < 50; ++round) {
      {
        Group group;
        rank.comm.send(token, next, rank.stream);
        rank.comm.recv(came, before, rank.stream);
        group.end();
      }
      rank.comm.all_reduce(token, came, DataType::kI32, ReduceOp::kSum, rank.stream);  // 0 + 1 + 2, then 3 times that
    }
    rank.stream.sync();
    unsigned wanted = 3;
    for (int round = 1; round < 50; ++round) wanted *= 3;
    EXPECT_EQ(static_cast<unsigned>(token.host_read<int>()[0]), wanted);
  }));
}

TEST_P(Messages, OfSizesThatDifferAreAnErrorOnBoth) {
  const std::vector<Met> met = with_ranks(2, [](Rank& rank) {
    const Buffer buffer = rank.upload(Bytes(100));
    if (rank.comm.rank() == 0) rank.comm.send(buffer.slice(0, 100), 1, rank.stream);
    else rank.comm.recv(buffer.slice(0, 60), 0, rank.stream);
    rank.stream.sync();
    rank.comm.barrier(rank.stream);
    rank.stream.sync();
  });
  for (const Met& one : met) {
    EXPECT_EQ(one.code, ErrorCode::kMismatch) << one.text;
    EXPECT_NE(one.text.find("100 bytes"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("60 bytes"), std::string::npos) << one.text;
  }
}

TEST_P(Messages, ThatNobodySendsRunIntoTheDeadline) {
  const std::vector<Met> met = with_ranks(
      2,
      [](Rank& rank) {
        const Buffer buffer = rank.upload(Bytes(100));
        if (rank.comm.rank() == 1) return rank.comm.barrier(rank.stream);  // never done: rank 0 does not join it
        rank.comm.recv(buffer.slice(0, 100), 1, rank.stream);
        rank.stream.sync();
      },
      std::chrono::milliseconds(300));
  EXPECT_TRUE(met[0].code) << "no error";
}

// One thread enqueues for all ranks: enqueuing waits for no rank.
TEST(Groups, OfAllRanksInOneThread) {
  const std::vector<Device> devices(3, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  std::vector<Stream> streams;
  std::vector<Buffer> in, out;
  for (const Device& device : devices) {
    streams.push_back(device.stream());
    in.push_back(device.alloc(1 << 20, MemoryKind::kPinned));
    out.push_back(device.alloc(1 << 20, MemoryKind::kPinned));
    out.back().host_write<int>()[0] = static_cast<int>(out.size());
  }
  {
    Group group;
    for (std::size_t i = 0; i < 3; ++i) {
      comms[i].send(out[i], static_cast<int>((i + 1) % 3), streams[i]);
      comms[i].recv(in[i], static_cast<int>((i + 2) % 3), streams[i]);
      comms[i].barrier(streams[i]);
    }
    group.end();
  }
  for (std::size_t i = 0; i < 3; ++i) {
    streams[i].sync();
    EXPECT_EQ(in[i].host_read<int>()[0], static_cast<int>((i + 2) % 3) + 1);
  }
}

// A group over several streams is one point in all of them.
TEST(Groups, JoinTheirStreams) {
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  const Stream one = devices[0].stream(StreamFlags::kNonBlocking), two = devices[0].stream(StreamFlags::kNonBlocking),
               other = devices[1].stream();
  const auto buffer = [&](std::size_t device) { return devices[device].alloc(8 << 20, MemoryKind::kPinned); };
  const Buffer sent = buffer(0), came = buffer(0), copied = buffer(0), there = buffer(1), back = buffer(1);
  two.fill(sent, 1);  // in the other stream than the one that sends it
  other.fill(back, 7);
  {
    Group group;
    comms[0].send(sent, 1, one);
    comms[0].recv(came, 1, two);
    Group within;  // part of the first
    comms[1].recv(there, 0, other);
    comms[1].send(back, 0, other);
    within.end();
    group.end();
  }
  one.copy(copied, came);  // in the other stream than the one that receives it
  one.sync();
  other.sync();
  for (const std::size_t at : {std::size_t{0}, sent.bytes() - 1}) {
    EXPECT_EQ(there.host_read<unsigned char>()[at], 1);
    EXPECT_EQ(copied.host_read<unsigned char>()[at], 7);
  }
}

TEST(Groups, RefuseWhatCannotBe) {
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  const Stream stream = devices[0].stream();
  const Buffer buffer = devices[0].alloc(64, MemoryKind::kPinned);
  EXPECT_TRUE(fails([&] { comms[0].send(buffer, 2, stream); }, ErrorCode::kInvalidValue,
                    {"rank 2 is not a rank", "has 2 ranks"}));
  EXPECT_TRUE(fails([&] { comms[0].recv(buffer, -1, stream); }, ErrorCode::kInvalidValue,
                    {"rank -1 is not a rank", "has 2 ranks"}));
  EXPECT_TRUE(
      fails([&] { comms[0].send(buffer, 0, stream); }, ErrorCode::kInvalidValue, {"sends 1 messages to itself"}));
}

// Messages of one group travel at the same time.
TEST(Groups, RefuseToReceiveWhereTheySend) {
  const std::vector<Device> devices(2, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  const Stream stream = devices[0].stream();
  const Buffer buffer = devices[0].alloc(64, MemoryKind::kPinned, "here");
  const auto exchange = [&](Range out, Range in, Range more) {
    Group group;
    comms[0].send(out, 1, stream);
    comms[0].recv(in, 1, stream);
    comms[0].recv(more, 1, stream);
    group.end();
  };
  const auto part = [&](std::size_t first, std::size_t bytes) { return buffer.slice(first, bytes); };
  EXPECT_TRUE(fails([&] { exchange(part(0, 32), part(31, 8), part(40, 8)); }, ErrorCode::kInvalidValue,
                    {"receives bytes 31 to 39 of buffer 'here'", "sends bytes 0 to 32"}));
  EXPECT_TRUE(fails([&] { exchange(part(20, 4), part(16, 16), part(0, 16)); }, ErrorCode::kInvalidValue, {"16 to 32"}));
  EXPECT_TRUE(fails([&] { exchange(part(0, 8), part(16, 16), part(24, 16)); }, ErrorCode::kInvalidValue,
                    {"receives bytes 24 to 40", "also bytes 16 to 32"}));
  EXPECT_TRUE(fails([&] { comms[0].all_reduce(part(0, 32), part(4, 32), DataType::kF32, ReduceOp::kSum, stream); },
                    ErrorCode::kInvalidValue, {"all_reduce", "4 to 36", "0 to 32"}));
  EXPECT_TRUE(
      fails([&] { comms[0].all_gather(part(0, 32), part(8, 16), stream); }, ErrorCode::kInvalidValue, {"8 to 24"}));
  exchange(part(0, 16), part(16, 16), part(32, 16));  // next to each other
  Group group;
  const Buffer there = devices[1].alloc(64, MemoryKind::kPinned);
  const Stream other = devices[1].stream();
  comms[1].recv(there.slice(0, 16), 0, other);
  for (const std::size_t first : {16U, 32U}) comms[1].send(there.slice(first, 16), 0, other);
  group.end();
  stream.sync();
  other.sync();
}

INSTANTIATE_TEST_SUITE_P(Over, Messages, testing::Values(Transport::kAuto, Transport::kNet),
                         [](const auto& of) { return of.param == Transport::kAuto ? "pipes" : "net"; });

}  // namespace
}  // namespace slip::test_messages
