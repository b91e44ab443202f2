// Collectives that run directly in the ranks' buffers: threads and processes, with some buffers shared and others not.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>

#include "base/env.hpp"
#include "comm/api/call.hpp"
#include "slip/communicator.hpp"
#include "support/errors.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"

namespace slip::test_direct {
namespace {

using test::as_ranks;
using test::expect_no_errors;
using test::fails;
using test::kShare;
using test::Met;
using test::RankProcess;

constexpr comm::Collective kKinds[] = {comm::Collective::kAllReduce,     comm::Collective::kReduce,
                                       comm::Collective::kBroadcast,     comm::Collective::kAllGather,
                                       comm::Collective::kAllToAll,      comm::Collective::kGather,
                                       comm::Collective::kReduceScatter, comm::Collective::kScatter};

unsigned char value(int rank, std::size_t i) {
  return static_cast<unsigned char>(static_cast<std::size_t>(rank) * 31 + i * 7 + i / 251);
}

// Bytes allow any size and any alignment, and their sums are exact.
unsigned char expected(const comm::Call& call, int rank, int nranks, std::size_t i) {
  const std::size_t block = call.elements, own = static_cast<std::size_t>(rank) * block;
  const auto sum = [&](std::size_t at) {
    unsigned total = 0;
    for (int from = 0; from < nranks; ++from) total += value(from, at);
    return static_cast<unsigned char>(total);
  };
  switch (call.kind) {
    case comm::Collective::kAllReduce:
    case comm::Collective::kReduce: return sum(i);
    case comm::Collective::kReduceScatter: return sum(own + i);
    case comm::Collective::kBroadcast: return value(call.root, i);
    case comm::Collective::kScatter: return value(call.root, own + i);
    case comm::Collective::kAllGather:
    case comm::Collective::kGather: return value(static_cast<int>(i / block), i % block);
    case comm::Collective::kAllToAll: return value(static_cast<int>(i / block), own + i % block);
    case comm::Collective::kBarrier:
    case comm::Collective::kMessage: break;
  }
  return 0;
}

void issue(Communicator& comm, const comm::Call& call, Range to, Range from, const Stream& stream) {
  switch (call.kind) {
    case comm::Collective::kAllReduce: return comm.all_reduce(to, from, call.type, call.op, stream);
    case comm::Collective::kReduce: return comm.reduce(to, from, call.type, call.op, call.root, stream);
    case comm::Collective::kReduceScatter: return comm.reduce_scatter(to, from, call.type, call.op, stream);
    case comm::Collective::kBroadcast: return comm.broadcast(to, from, call.root, stream);
    case comm::Collective::kScatter: return comm.scatter(to, from, call.root, stream);
    case comm::Collective::kAllGather: return comm.all_gather(to, from, stream);
    case comm::Collective::kGather: return comm.gather(to, from, call.root, stream);
    case comm::Collective::kAllToAll: return comm.all_to_all(to, from, stream);
    case comm::Collective::kBarrier: return comm.barrier(stream);
    case comm::Collective::kMessage: break;
  }
}

// One rank's side of a call. Its buffers have guard bytes before and behind, which must not change.
class Trial {
 public:
  Trial(Communicator& comm, const Stream& stream, Buffer& first, Buffer& second)
      : comm_(comm), stream_(stream), first_(first), second_(second) {}

  // What is wrong with the result; "": nothing.
  std::string run(const comm::Call& call, bool in_place, std::size_t shift) {
    const comm::Blocks blocks = comm::blocks_of(call, comm_.rank(), comm_.nranks());
    const std::size_t in = blocks.in * call.elements, out = blocks.out * call.elements;
    const std::size_t own = static_cast<std::size_t>(comm_.rank()) * call.elements;
    const std::size_t from_at = shift + (in_place && in > 0 && in < out ? own : 0);
    const std::size_t to_at = shift + (in_place && out > 0 && out < in ? own : in_place ? 0 : 3);
    Buffer& target = in_place ? first_ : second_;
    std::memset(first_.host_write<std::byte>().begin(), 0xaa, first_.bytes());
    std::memset(second_.host_write<std::byte>().begin(), 0xaa, second_.bytes());
    {
      const HostView<unsigned char> view = first_.host_write<unsigned char>();
      for (std::size_t i = 0; i < in; ++i) view[from_at + i] = value(comm_.rank(), i);
    }
    issue(comm_, call, target.slice(to_at, std::max<std::size_t>(blocks.out, 1) * call.elements),
          first_.slice(from_at, std::max<std::size_t>(blocks.in, 1) * call.elements), stream_);
    stream_.sync();
    const HostView<const unsigned char> view = target.host_read<unsigned char>();
    for (std::size_t i = 0; i < out; ++i) {
      if (view[to_at + i] != expected(call, comm_.rank(), comm_.nranks(), i))
        return text(call, in_place, shift) + "wrong at " + std::to_string(i);
    }
    const std::size_t begin = in_place && in > 0 ? std::min(to_at, from_at) : to_at;
    const std::size_t end = in_place ? std::max(to_at + out, from_at + in) : to_at + out;
    if (!is_filled(&view[0], begin) || !is_filled(&view[0] + end, target.bytes() - end))
      return text(call, in_place, shift) + "not its own is changed";
    return "";
  }

 private:
  // Whether all bytes are 0xaa. By memcmp, which sanitizers check once and not for each byte.
  static bool is_filled(const unsigned char* data, std::size_t bytes) {
    return bytes == 0 || (data[0] == 0xaa && std::memcmp(data, data + 1, bytes - 1) == 0);
  }
  std::string text(const comm::Call& call, bool in_place, std::size_t shift) const {
    return std::string(comm::collective_name(call.kind)) + " of " + std::to_string(call.elements) + " bytes on rank " +
           std::to_string(comm_.rank()) + (in_place ? " in place" : "") + ", shift " + std::to_string(shift) + ": ";
  }

  Communicator& comm_;
  const Stream& stream_;
  Buffer &first_, &second_;
};

// Small ones, a little more than fits into a box, odd ones, several chunks.
constexpr std::size_t kSizes[] = {1, 77, 16'384, 16'385, 40'001, 700'003};
constexpr std::size_t kMax = kShare > 1 ? 40'001 : 700'003;

std::string every_call(Communicator& comm, const Device& device, bool registered) {
  const Stream stream = device.stream();
  const std::size_t bytes = kMax * static_cast<std::size_t>(comm.nranks()) + 256;
  SharedBuffer shared[2];
  Buffer own[2];
  for (int i = 0; i < 2; ++i) {
    shared[i] = comm.allocate(registered ? bytes : 0);
    if (!registered) own[i] = device.alloc(bytes, MemoryKind::kPinned);
  }
  Trial trial(comm, stream, registered ? shared[0].buffer() : own[0], registered ? shared[1].buffer() : own[1]);
  for (const std::size_t size : kSizes) {
    if (size > kMax) continue;
    for (const comm::Collective kind : kKinds) {
      for (const bool in_place : {false, true}) {
        const std::size_t shift = size % 3 * 13 + (in_place ? 5 : 0);
        const comm::Call call{.kind = kind, .type = DataType::kU8, .root = comm.nranks() - 1, .elements = size};
        const std::string wrong = trial.run(call, in_place, shift);
        if (!wrong.empty()) return wrong;
      }
    }
  }
  return "fine";
}

class RanksThatOffer : public testing::TestWithParam<int> {};

bool is_among(int setting, int rank) {
  return setting == 0 || (setting == 1 && rank == 1) || (setting == 2 && rank != 1);
}

// Threads can reach all memory of each other, unless the options forbid it.
TEST_P(RanksThatOffer, AsThreads) {
  for (const int nranks : {1, 2, 3}) {
    const UniqueId id = test::local_id();
    expect_no_errors(as_ranks(nranks, [&](int rank) {
      const Device device = Device::open("cpu", {.compute_workers = 2});
      Communicator comm =
          Communicator::init(id, nranks, rank, device, {.direct = is_among(GetParam(), rank), .host = {}});
      EXPECT_EQ(every_call(comm, device, rank % 2 == 0), "fine");
    }));
  }
}

std::size_t mappings_of_shared_memory() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("memfd:slipstream") != std::string::npos ? 1 : 0;
  return count;
}

constexpr const char* kSetting = "SLIP_TEST_SETTING";

SLIP_CHILD(RanksThatOffer, Process) {
  const int setting = std::stoi(base::env_text(kSetting));
  test::play([setting](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    return every_call(comm, device, is_among(setting, info.rank));
  });
}

TEST_P(RanksThatOffer, AsProcesses) {
  for (const char* single_copy : {"always", "never"}) {
    SCOPED_TRACE(single_copy);
    const std::map<std::string, std::string> variables{{kSetting, std::to_string(GetParam())},
                                                       {"SLIP_SINGLE_COPY", single_copy}};
    const UniqueId id = test::local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("RanksThatOffer.Process", id, 3, rank, variables);
    for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "fine");
  }
}

// All, one, all but one, none.
INSTANTIATE_TEST_SUITE_P(Settings, RanksThatOffer, testing::Values(0, 1, 2, 3), testing::PrintToStringParamName());

std::vector<std::string> reports(const std::string& test, int nranks) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < nranks; ++rank) ranks.emplace_back(test, id, nranks, rank);
  std::vector<std::string> result;
  for (const RankProcess& rank : ranks) result.push_back(rank.report());
  return result;
}

// The ranks allocate different sizes and free in different orders. A segment that all have freed is unmapped.
SLIP_CHILD(SharedBuffers, ManyTimes) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    const std::size_t before = mappings_of_shared_memory();
    std::vector<SharedBuffer> kept(3);
    for (unsigned turn = 0; turn < 60; ++turn) {
      SharedBuffer& buffer = kept[(turn * (info.rank == 0 ? 1 : 2)) % 3];
      buffer = SharedBuffer();
      buffer = comm.allocate(40'000 + static_cast<std::size_t>(info.rank) * 4096 + turn);
      for (std::uint32_t& one : buffer.buffer().host_write<std::uint32_t>()) {
        if (one != 0) return "not zeroed";
        one = turn;
      }
      comm.all_reduce(buffer.slice(0, 40'000), buffer.slice(0, 40'000), DataType::kU32, ReduceOp::kSum, stream);
      stream.sync();
      if (buffer.buffer().host_read<std::uint32_t>()[9999] != 3 * turn) return "wrong sum";
    }
    if (mappings_of_shared_memory() > before + 8) return "too much stays mapped";
    kept.clear();
    comm.barrier(stream);
    stream.sync();
    SharedBuffer last = comm.allocate(100), freed = comm.allocate(1);  // after all have freed theirs
    if (mappings_of_shared_memory() > before + 2) return "what was freed stays mapped";
    const Range stale = freed;
    freed = SharedBuffer();
    if (!fails([&] { stream.fill(stale, 0); }, ErrorCode::kInvalidHandle, {"freed"})) return "freed memory can be used";
    return "fine";
  });
}

TEST(SharedBuffers, AllocatedAndFreedManyTimes) {
  for (const std::string& report : reports("SharedBuffers.ManyTimes", 3)) EXPECT_EQ(report, "fine");
}

// Ranks that are threads get ordinary memory, as ranks on GPUs do.
TEST(SharedBuffers, AThreadWithoutMemoryIsAnErrorOnAllRanks) {
  constexpr int kRanks = 3;
  const std::vector<Device> devices(kRanks, Device::open("cpu", {.compute_workers = 2}));
  std::vector<Communicator> comms = Communicator::init_all(devices);
  expect_no_errors(as_ranks(kRanks, [&](int rank) {
    Communicator& comm = comms[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(fails([&] { static_cast<void>(comm.allocate(rank == 1 ? std::size_t{1} << 60 : 100)); },
                      ErrorCode::kOutOfMemory, {"rank 1", "1152921504606846976 bytes"}));
    EXPECT_EQ(comm.allocate(rank == 2 ? 0 : 100).bytes(), rank == 2 ? 0U : 100U) << "the communicator stays usable";
  }));
}

SLIP_CHILD(SharedBuffers, Elsewhere) {
  test::play([](const transport::LaunchInfo&) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    const Stream stream = device.stream();
    SharedBuffer buffer;
    {
      Communicator first = Communicator::init(device);
      try {
        first.allocate(std::size_t{1} << 60);
        return "too much was given";
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kOutOfMemory) return error.what();
      }
      buffer = first.allocate(100'000);
      // Of another communicator: memory like any other.
      const Device other = Device::open("cpu", {.compute_workers = 2});
      std::vector<Device> alone{other};
      std::vector<Communicator> single = Communicator::init_all(alone);
      for (unsigned char& one : buffer.buffer().host_write<unsigned char>()) one = 7;
      const Stream there = other.stream();
      single[0].all_reduce(buffer, buffer, DataType::kU8, ReduceOp::kSum, there);
      there.sync();
      first.all_reduce(buffer, buffer, DataType::kU8, ReduceOp::kSum, stream);
      stream.sync();
    }
    // It outlives the communicator.
    for (const unsigned char one : buffer.buffer().host_read<unsigned char>()) {
      if (one != 14) return "wrong: " + std::to_string(one);
    }
    return "fine";
  });
}

TEST(SharedBuffers, InOtherCommunicatorsAndAfterTheirOwn) {
  for (const std::string& report : reports("SharedBuffers.Elsewhere", 2)) EXPECT_EQ(report, "fine");
}

SLIP_CHILD(SharedBuffers, UntilOneIsKilled) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const Device device = Device::open("cpu", {.compute_workers = 2});
    Communicator comm = Communicator::init(device);
    const Stream stream = device.stream();
    SharedBuffer data = comm.allocate(4'000'000);
    try {
      for (int call = 0;; ++call) {
        comm.all_reduce(data, data, DataType::kU8, ReduceOp::kMax, stream);
        stream.sync();
        if (info.rank == 2 && call == 20) static_cast<void>(!::write(test::kLine, "!", 1));
      }
    } catch (const Error& error) {
      for (unsigned char& one : data.buffer().host_write<unsigned char>()) one = 1;  // is still there
      return std::string(code_name(error.code())) + " " + error.what();
    }
  });
}

TEST(SharedBuffers, AKilledRankIsReportedToTheOthers) {
  const UniqueId id = test::local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("SharedBuffers.UntilOneIsKilled", id, 3, rank);
  EXPECT_EQ(ranks[2].hear(1), "!");
  ranks[2].signal(SIGKILL);
  for (const std::size_t rank : {0U, 1U}) {
    const std::string report = ranks[rank].report();
    EXPECT_NE(report.find("rank 2 is gone"), std::string::npos) << report;
  }
}

// A rank that leaves a call with an error frees its buffers at once, while others may have worked in them.
TEST(SharedBuffers, ARankThatGivesUpIsLeftAlone) {
  for (unsigned round = 0; round < 40 / kShare + 4; ++round) {
    const std::vector<Device> devices(3, Device::open("cpu", {.compute_workers = 2}));
    std::vector<Communicator> comms = Communicator::init_all(devices);
    const std::vector<Met> met = as_ranks(3, [&](int rank) {
      Communicator& comm = comms[static_cast<std::size_t>(rank)];
      const Device device = Device::open("cpu", {.compute_workers = 2});
      const Stream stream = device.stream();
      std::thread other;
      try {
        Buffer data = device.alloc(300'000, MemoryKind::kPinned);
        std::memset(data.host_write<std::byte>().begin(), 0, 300'000);
        for (unsigned call = 0;; ++call) {
          if (rank == 1 && call == 5 + round) other = std::thread([&] { comm.abort(); });
          comm.all_reduce(data, data, DataType::kU8, ReduceOp::kMax, stream);
          stream.sync();
        }
      } catch (const Error& error) {
        if (other.joinable()) other.join();
        throw;
      }
    });
    for (const Met& one : met)
      EXPECT_TRUE(one.code == ErrorCode::kAborted || one.code == ErrorCode::kRankLost) << one.text;
  }
}

}  // namespace
}  // namespace slip::test_direct
