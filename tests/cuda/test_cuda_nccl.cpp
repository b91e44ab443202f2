// Communicators whose calls are carried by NVIDIA's NCCL (SLIP_NCCL). Each rank is a process: NCCL reads its
// environment once. Several ranks share cuda:0; each has its own NCCL_HOSTID, because NCCL refuses several ranks of one
// host on one GPU. Skipped without a GPU or without the library: SLIP_TEST_NCCL=FILE names it, otherwise SLIP_NCCL=auto
// must find it.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "base/clock.hpp"
#include "comm/delegate/nccl_library.hpp"
#include "comm/reduce/reduce.hpp"
#include "slip/slip.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip {
namespace {

using test::local_id;
using test::play;
using test::RankProcess;

constexpr std::size_t kMaxBytes = 16 << 20;
constexpr DataType kTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32,    DataType::kU32,
                               DataType::kI64, DataType::kU64, DataType::kF16,    DataType::kBF16,
                               DataType::kF32, DataType::kF64, DataType::kF8E4M3, DataType::kF8E5M2};
constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kAvg,  ReduceOp::kPreMulSum};

using Bytes = std::vector<std::byte>;

// Small numbers: every sum and product of a few ranks is exact in all types, so the order of the ranks does not matter.
Bytes numbers(DataType type, int rank, std::size_t elements) {
  Bytes result(elements * bytes_of(type));
  for (std::size_t i = 0; i < elements; ++i) {
    const double value = (i * 7 + static_cast<std::size_t>(rank) * 3 + i / 5) % 2 == 0 ? 1 : 2;
    const comm::ReduceScale scale = comm::scale_of(type, value, {});
    std::memcpy(result.data() + i * bytes_of(type), scale.bytes.data(), bytes_of(type));
  }
  return result;
}

Bytes letters(int rank, std::size_t bytes) {
  Bytes result(bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    result[i] = static_cast<std::byte>((i * 31 + i / 251 + static_cast<std::size_t>(rank) * 101) % 256);
  return result;
}

Bytes part(const Bytes& bytes, std::size_t index, std::size_t block) {
  const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(index * block);
  return {begin, begin + static_cast<std::ptrdiff_t>(block)};
}

class NcclRank {
 public:
  explicit NcclRank(const transport::LaunchInfo& info, const CommunicatorOptions& options = {})
      : comm(Communicator::init(info.id, info.nranks, info.rank, device, options)) {}

  void check_everything() {
    check_reductions();
    for (const std::size_t block : {std::size_t{1}, std::size_t{1000}, std::size_t{1'000'003}}) check_copies(block);
    check_in_place();
    check_host_memory();
    check_messages();
    check_graph();
    check_plan();
    check_split();
    comm.finalize();
  }

  void check_gather() {
    const std::size_t block = 1000;
    Bytes all;
    for (int rank = 0; rank < comm.nranks(); ++rank) {
      const Bytes one = letters(rank, block);
      all.insert(all.end(), one.begin(), one.end());
    }
    put(letters(comm.rank(), block));
    comm.gather(out.slice(0, n() * block), in.slice(0, block), 0, stream);
    stream.sync();
    if (comm.rank() == 0) expect("gather", all);
  }

  const Device device = Device::open("cuda:0");
  Buffer in = device.alloc(kMaxBytes, MemoryKind::kDevice, "in"), out = device.alloc(kMaxBytes, MemoryKind::kDevice),
         host = device.alloc(kMaxBytes, MemoryKind::kPinned, "host");
  const Stream stream = device.stream(StreamFlags::kNonBlocking), other = device.stream(StreamFlags::kNonBlocking);
  Communicator comm;

 private:
  std::size_t n() const { return static_cast<std::size_t>(comm.nranks()); }
  std::size_t own() const { return static_cast<std::size_t>(comm.rank()); }

  void put(const Bytes& bytes) {
    std::memcpy(host.host_write<std::byte>().begin(), bytes.data(), bytes.size());
    stream.copy(in.slice(0, bytes.size()), host.slice(0, bytes.size()));
    stream.sync();
  }
  void expect(const std::string& what, const Bytes& expected, std::optional<Range> from = {}) {
    stream.copy(host.slice(0, expected.size()), from ? *from : Range(out.slice(0, expected.size())));
    stream.sync();
    const auto view = host.host_read<std::byte>();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (view[i] != expected[i])
        throw std::runtime_error(fmt::format("rank {}: {}: byte {} of {} is {} instead of {}", comm.rank(), what, i,
                                             expected.size(), static_cast<int>(view[i]),
                                             static_cast<int>(expected[i])));
    }
  }
  static double factor_of(std::size_t rank) { return rank % 2 == 0 ? 1 : 2; }
  Bytes reduced(DataType type, ReduceOp op, std::size_t elements, std::size_t first = 0, std::size_t all = 0) const {
    std::vector<Bytes> inputs;
    std::vector<const void*> sources;
    std::vector<comm::ReduceScale> scales;
    for (std::size_t rank = 0; rank < n(); ++rank) {
      inputs.push_back(numbers(type, static_cast<int>(rank), std::max(all, elements)));
      scales.push_back(comm::scale_of(type, factor_of(rank), {}));
    }
    for (const Bytes& one : inputs) sources.push_back(one.data() + first * bytes_of(type));
    comm::Reduction how{type, op, op == ReduceOp::kAvg ? n() : 1, {}};
    if (op == ReduceOp::kPreMulSum) how.scales = scales;
    Bytes result(elements * bytes_of(type));
    comm::reduce(how, result.data(), sources, elements);
    return result;
  }

  void check_reductions() {
    for (const DataType type : kTypes) {
      const std::size_t elements = 1003, bytes = elements * bytes_of(type);
      const bool is_float = type != DataType::kI8 && type != DataType::kU8 && type != DataType::kI32 &&
                            type != DataType::kU32 && type != DataType::kI64 && type != DataType::kU64;
      for (const ReduceOp op : kOps) {
        if (op == ReduceOp::kAvg && is_float && n() == 3) continue;  // a third is not exact
        if (op == ReduceOp::kPreMulSum && bytes_of(type) == 1 && is_float && n() == 1) continue;  // NCCL has none
        put(numbers(type, comm.rank(), elements));
        const ReduceSpec how = op == ReduceOp::kPreMulSum ? premul_sum(factor_of(own())) : ReduceSpec(op);
        comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), type, how, stream);
        expect(fmt::format("all_reduce of {} by {}", data_type_name(type), reduce_op_name(op)),
               reduced(type, op, elements));
      }
      put(numbers(type, comm.rank(), elements * n()));
      comm.reduce_scatter(out.slice(0, bytes), in.slice(0, n() * bytes), type, ReduceOp::kSum, stream);
      expect(fmt::format("reduce_scatter of {}", data_type_name(type)),
             reduced(type, ReduceOp::kSum, elements, own() * elements, n() * elements));
      comm.reduce(out.slice(0, bytes), in.slice(0, bytes), type, ReduceOp::kMax, comm.nranks() - 1, stream);
      if (own() + 1 == n())
        expect(fmt::format("reduce of {}", data_type_name(type)),
               reduced(type, ReduceOp::kMax, elements, 0, n() * elements));
    }
    const std::size_t elements = 2'000'003, bytes = elements * sizeof(float);
    put(numbers(DataType::kF32, comm.rank(), elements));
    comm.all_reduce(in.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, stream);
    expect("a large all_reduce in place", reduced(DataType::kF32, ReduceOp::kSum, elements), in.slice(0, bytes));
  }

  void check_copies(std::size_t block) {
    const int last = comm.nranks() - 1;
    const std::size_t all_bytes = n() * block;
    Bytes all, exchanged;
    for (int rank = 0; rank < comm.nranks(); ++rank) {
      const Bytes input = letters(rank, all_bytes), first = part(input, 0, block), mine = part(input, own(), block);
      all.insert(all.end(), first.begin(), first.end());
      exchanged.insert(exchanged.end(), mine.begin(), mine.end());
    }
    put(letters(comm.rank(), all_bytes));
    comm.all_gather(out.slice(0, all_bytes), in.slice(0, block), stream);
    expect("all_gather", all);
    comm.all_to_all(out.slice(0, all_bytes), in.slice(0, all_bytes), stream);
    expect("all_to_all", exchanged);
    comm.broadcast(out.slice(0, block), in.slice(0, block), last, stream);
    expect("broadcast", part(letters(last, all_bytes), 0, block));
    comm.scatter(out.slice(0, block), in.slice(0, all_bytes), 0, stream);
    expect("scatter", part(letters(0, all_bytes), own(), block));
    comm.gather(out.slice(0, all_bytes), in.slice(0, block), last, stream);
    if (comm.rank() == last) expect("gather", all);
    comm.barrier(stream);
    comm.all_to_all(in.slice(0, all_bytes), in.slice(0, all_bytes), stream);
    expect("all_to_all in place", exchanged, in.slice(0, all_bytes));
  }

  // The smaller buffer is this rank's part of the larger one.
  void check_in_place() {
    const std::size_t block = 5000;
    Bytes all;
    for (int rank = 0; rank < comm.nranks(); ++rank) {
      const Bytes mine = part(letters(rank, n() * block), static_cast<std::size_t>(rank), block);
      all.insert(all.end(), mine.begin(), mine.end());
    }
    put(letters(comm.rank(), n() * block));
    comm.all_gather(in.slice(0, n() * block), in.slice(own() * block, block), stream);
    expect("all_gather in place", all, in.slice(0, n() * block));
    put(letters(comm.rank(), n() * block));
    comm.gather(in.slice(0, n() * block), in.slice(own() * block, block), 0, stream);
    if (comm.rank() == 0) expect("gather in place", all, in.slice(0, n() * block));
    put(letters(comm.rank(), n() * block));
    comm.scatter(in.slice(own() * block, block), in.slice(0, n() * block), 0, stream);
    expect("scatter in place", part(letters(0, n() * block), own(), block), in.slice(own() * block, block));
  }

  void check_host_memory() {
    const std::size_t bytes = 1000 * sizeof(std::int32_t);
    const Bytes mine = numbers(DataType::kI32, comm.rank(), 1000);
    std::memcpy(host.host_write<std::byte>().begin(), mine.data(), bytes);
    comm.all_reduce(host.slice(bytes, bytes), host.slice(0, bytes), DataType::kI32, ReduceOp::kSum, stream);
    stream.copy(out.slice(0, bytes), host.slice(bytes, bytes));
    expect("all_reduce in pinned memory", reduced(DataType::kI32, ReduceOp::kSum, 1000));
  }

  void check_messages() {
    const int next = (comm.rank() + 1) % comm.nranks(), before = (comm.rank() + comm.nranks() - 1) % comm.nranks();
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{777}, std::size_t{3'000'001}}) {
      put(letters(comm.rank(), 2 * bytes));
      Group group;  // two messages to the next rank, in order
      comm.send(in.slice(0, bytes), next, stream);
      comm.send(in.slice(bytes, bytes), next, stream);
      comm.recv(out.slice(0, bytes), before, stream);
      comm.recv(out.slice(bytes, bytes), before, stream);
      group.end();
      expect("messages", letters(before, 2 * bytes));
    }
    if (n() == 1) return;  // a message to itself needs a group
    if (comm.rank() == 0) comm.send(in.slice(0, 100), comm.nranks() - 1, stream);
    if (own() + 1 != n()) return;
    comm.recv(out.slice(0, 100), 0, stream);
    expect("a message alone", part(letters(0, 6'000'002), 0, 100));
  }

  // A CUDA graph that the program captures itself is replayed with new input.
  void check_graph() {
    cudaStream_t const native = other.native();
    const Stream adopted = device.adopt(native);
    const std::size_t bytes = 5000 * sizeof(float);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal);
    comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, adopted);
    comm.broadcast(out.slice(bytes, 100), in.slice(bytes, 100), 0, adopted);
    if (cudaStreamEndCapture(native, &graph) != cudaSuccess) throw std::runtime_error("the capture failed");
    if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) throw std::runtime_error("no graph");
    for (int round = 0; round < 3; ++round) {
      put(round == 1 ? Bytes(bytes) : numbers(DataType::kF32, comm.rank(), 5000));
      cudaGraphLaunch(exec, native);
      cudaStreamSynchronize(native);
      expect("a replayed graph", round == 1 ? Bytes(bytes) : reduced(DataType::kF32, ReduceOp::kSum, 5000));
    }
    comm.all_reduce(out.slice(0, bytes), in.slice(0, bytes), DataType::kF32, ReduceOp::kSum, stream);
    expect("a call after a graph", reduced(DataType::kF32, ReduceOp::kSum, 5000));
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
  }

  void check_plan() {
    stream.begin_capture();
    comm.all_reduce(out.slice(0, 4000), in.slice(0, 4000), DataType::kI32, ReduceOp::kSum, stream);
    Plan plan = stream.end_capture();
    for (int round = 0; round < 2; ++round) {
      put(numbers(DataType::kI32, comm.rank(), 1000));
      stream.launch(plan);
      expect("a launched plan", reduced(DataType::kI32, ReduceOp::kSum, 1000));
    }
  }

  void check_split() {
    std::optional<Communicator> half = comm.split(comm.rank() % 2, -comm.rank());
    *host.host_write<std::int32_t>().begin() = comm.rank() + 1;
    stream.copy(in.slice(0, 4), host.slice(0, 4));
    half->all_reduce(out.slice(0, 4), in.slice(0, 4), DataType::kI32, ReduceOp::kSum, stream);
    stream.copy(host.slice(0, 4), out.slice(0, 4));
    stream.sync();
    std::int32_t expected = 0;
    for (int rank = comm.rank() % 2; rank < comm.nranks(); rank += 2) expected += rank + 1;
    const std::int32_t got = host.host_read<std::int32_t>()[0];
    if (got != expected) throw std::runtime_error(fmt::format("split: {} instead of {}", got, expected));
  }
};

std::string nccl_path() {
  const std::string named = base::env_text("SLIP_TEST_NCCL");
  const comm::NcclSearch found = comm::find_nccl(named.empty() ? "auto" : named);
  return found.loaded ? found.loaded->path : "";
}

std::map<std::string, std::string> variables_of(int rank, const std::string& library) {
  return {{"SLIP_NCCL", library},
          {"NCCL_HOSTID", fmt::format("host{}", rank)},
          {"NCCL_SOCKET_IFNAME", "lo"},
          {"NCCL_IB_DISABLE", "1"}};
}

std::vector<RankProcess> start(const std::string& child, int count, const std::string& library) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.emplace_back(child, id, count, rank, variables_of(rank, library));
  return ranks;
}

class CudaNccl : public testing::Test {
 protected:
  void SetUp() override {
    if (::access("/dev/nvidiactl", F_OK) != 0) GTEST_SKIP() << "no GPU here";
    library_ = nccl_path();
    if (library_.empty()) GTEST_SKIP() << "no libnccl.so.2 of NVIDIA was found: set SLIP_TEST_NCCL=FILE";
  }
  std::string library_;
};

SLIP_CHILD(CudaNccl, Everything) {
  play([](const transport::LaunchInfo& info) -> std::string {
    NcclRank one(info);
    const std::string engine = engine_of(one.comm);
    if (!engine.starts_with("NCCL ")) return "carried by " + engine;
    one.check_everything();
    return "right";
  });
}

TEST_F(CudaNccl, OneRankGetsTheRightResults) {
  EXPECT_EQ(start("CudaNccl.Everything", 1, library_)[0].report(), "right");
}

TEST_F(CudaNccl, RanksOfDifferentHostIdsGetTheRightResults) {
  for (const int count : {2, 3}) {
    for (const RankProcess& rank : start("CudaNccl.Everything", count, library_)) EXPECT_EQ(rank.report(), "right");
  }
}

SLIP_CHILD(CudaNccl, Engine) {
  play([](const transport::LaunchInfo& info) -> std::string {
    NcclRank one(info);
    one.comm.barrier(one.stream);
    one.stream.sync();
    one.comm.finalize();
    return engine_of(one.comm);
  });
}

TEST_F(CudaNccl, ALibraryThatCannotBeUsedIsAnErrorThatNamesTheReason) {
  const std::string missing = start("CudaNccl.Engine", 1, "/nowhere/libnccl.so.2")[0].report();
  EXPECT_NE(missing.find("/nowhere/libnccl.so.2: No such file"), std::string::npos) << missing;
  const std::string other = start("CudaNccl.Engine", 1, "libm.so.6")[0].report();
  EXPECT_NE(other.find("not NCCL"), std::string::npos) << other;
}

TEST_F(CudaNccl, SeveralRanksOfOneHostOnOneGpuAreRefused) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back("CudaNccl.Engine", id, 2, rank, std::map<std::string, std::string>{{"SLIP_NCCL", library_}});
  for (const RankProcess& rank : ranks) {
    const std::string text = rank.report();
    EXPECT_NE(text.find("ranks 0 and 1 are on one GPU, and NCCL refuses several ranks on one GPU; unset SLIP_NCCL"),
              std::string::npos)
        << text;
  }
}

TEST_F(CudaNccl, AutoUsesSlipstreamForSeveralRanksOnOneGpu) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back("CudaNccl.Engine", id, 2, rank, std::map<std::string, std::string>{{"SLIP_NCCL", "auto"}});
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "Slipstream");
}

SLIP_CHILD(CudaNccl, WaitForAKilledRank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.heartbeat = std::chrono::milliseconds(300);
    options.silence = std::chrono::milliseconds(1500);
    NcclRank one(info, options);
    one.comm.barrier(one.stream);
    one.stream.sync();
    static_cast<void>(!::write(test::kLine, "j", 1));
    if (info.rank == 2) {
      for (;;) ::pause();
    }
    try {
      one.comm.all_reduce(one.out.slice(0, 4000), one.in.slice(0, 4000), DataType::kF32, ReduceOp::kSum, one.stream);
      one.stream.sync();
    } catch (const Error& error) {
      const Stream again = one.device.stream(StreamFlags::kNonBlocking);
      again.copy(one.out.slice(0, 4000), one.in.slice(0, 4000));  // streams go on
      again.sync();
      Communicator left = one.comm.shrink();
      left.all_reduce(one.out.slice(0, 4000), one.in.slice(0, 4000), DataType::kF32, ReduceOp::kSum, again);
      again.sync();
      const bool named = std::string(error.what()).find("rank 2") != std::string::npos;
      return error.code() == ErrorCode::kRankLost && named && left.nranks() == 2 ? "lost" : error.what();
    }
    return "no error";
  });
}

TEST_F(CudaNccl, AKilledProcessIsAnErrorOnTheOthersWhichShrink) {
  const std::vector<RankProcess> ranks = start("CudaNccl.WaitForAKilledRank", 3, library_);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "j");
  ranks[2].signal(SIGKILL);
  for (const std::size_t rank : {0, 1}) EXPECT_EQ(ranks[rank].report(), "lost");
}

SLIP_CHILD(CudaNccl, WaitForARankThatMakesNoCall) {
  play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(500);
    NcclRank one(info, options);
    if (info.rank == 1) {
      while (!one.comm.error()) std::this_thread::yield();
      return one.comm.error()->what();
    }
    try {
      one.comm.barrier(one.stream);
      one.stream.sync();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  });
}

TEST_F(CudaNccl, ADeadlineNamesTheRankThatHasNotJoined) {
  for (const RankProcess& rank : start("CudaNccl.WaitForARankThatMakesNoCall", 2, library_)) {
    const std::string text = rank.report();
    EXPECT_NE(text.find("rank 0 waited 0.5 s in barrier, call 1 for rank 1"), std::string::npos) << text;
  }
}

// Rank 2 makes its part and leaves. Rank 1 joins late: after the time in which rank 0 would give up a departed rank.
SLIP_CHILD(CudaNccl, GatherFromARankThatLeaves) {
  play([](const transport::LaunchInfo& info) -> std::string {
    NcclRank one(info);
    one.check_gather();  // connects the ranks
    // What must not happen has no event to wait for: rank 1 stays out as long as the error would need.
    const std::int64_t late_until = base::now_ns() + 5'000'000'000;
    while (info.rank == 1 && base::now_ns() < late_until) {
      if (const std::optional<Error> error = one.comm.error()) return error->what();
      std::this_thread::yield();
    }
    one.check_gather();
    return "right";
  });
}

TEST_F(CudaNccl, ARankMayLeaveAfterItsPart) {
  for (const RankProcess& rank : start("CudaNccl.GatherFromARankThatLeaves", 3, library_))
    EXPECT_EQ(rank.report(), "right");
}

// NCCL does not compare types: the call runs, and finalize() finds the difference.
SLIP_CHILD(CudaNccl, CallsOfDifferentTypes) {
  play([](const transport::LaunchInfo& info) -> std::string {
    NcclRank one(info);
    try {
      one.comm.all_reduce(one.out.slice(0, 400), one.in.slice(0, 400), info.rank == 0 ? DataType::kF32 : DataType::kI32,
                          ReduceOp::kSum, one.stream);
      one.stream.sync();
      one.comm.finalize();
    } catch (const Error& error) {
      return error.code() == ErrorCode::kMismatch ? "mismatch" : error.what();
    }
    return "no error";
  });
}

TEST_F(CudaNccl, DifferentCallsAreAnErrorOnAllRanks) {
  for (const RankProcess& rank : start("CudaNccl.CallsOfDifferentTypes", 2, library_))
    EXPECT_EQ(rank.report(), "mismatch");
}

}  // namespace
}  // namespace slip
