// Communicators whose ranks are on GPUs of several hosts. All ranks are on cuda:0 here: ranks with different host names
// count as on different hosts, so their data passes through pinned memory and TCP.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "gpu_rank.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"

namespace slip {
namespace {

using test::as_ranks;
using test::expect_no_errors;
using test::GpuRank;
using test::has_gpu;
using test::local_id;
using test::Met;
using test::play;
using test::RankProcess;

// Bits as of adding in rank order, so that results can be compared with the CPU's.
CommunicatorOptions on_host(const std::string& host) {
  CommunicatorOptions options;
  options.deterministic = true;
  options.host = host;
  options.timeout = std::chrono::seconds(60);
  return options;
}

class CudaHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
  static std::vector<RankProcess> start(const std::string& child, int count, int hosts) {
    const UniqueId id = local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < count; ++rank)
      ranks.emplace_back("CudaHosts." + child, id, count, rank,
                         std::map<std::string, std::string>{{"SLIP_HOST_ID", "host" + std::to_string(rank % hosts)}});
    return ranks;
  }
  // Two ranks as threads, each on its own host.
  static std::vector<Met> run(const std::function<void(GpuRank&, int)>& body,
                              std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
    const UniqueId id = local_id();
    std::vector<std::unique_ptr<GpuRank>> ranks(2);
    return as_ranks(2, [&](int rank) {
      CommunicatorOptions options = on_host("host" + std::to_string(rank));
      options.timeout = timeout;
      auto& mine = ranks[static_cast<std::size_t>(rank)];
      mine = std::make_unique<GpuRank>(id, 2, rank, options);
      body(*mine, rank);
    });
  }
};

SLIP_CHILD(CudaHosts, Everything) {
  play([](const transport::LaunchInfo& info) {
    GpuRank one(info.id, info.nranks, info.rank, on_host({}));
    std::string wrong = one.check_many_parts();
    if (wrong.empty()) wrong = one.check_everything();
    return wrong.empty() ? std::string("right") : wrong;
  });
}

TEST_F(CudaHosts, ProcessesOnTwoHostsGetTheResultsOfTheCpu) {
  for (RankProcess& rank : start("Everything", 2, 2)) EXPECT_EQ(rank.report(), "right");
}

TEST_F(CudaHosts, ProcessesOnThreeHostsGetTheResultsOfTheCpu) {
  for (RankProcess& rank : start("Everything", 3, 3)) EXPECT_EQ(rank.report(), "right");
}

// Some ranks share a host, whose memory they use.
TEST_F(CudaHosts, SeveralProcessesOnEachHostGetTheResultsOfTheCpu) {
  for (RankProcess& rank : start("Everything", 4, 2)) EXPECT_EQ(rank.report(), "right");
}

TEST_F(CudaHosts, ThreadsGetTheResultsOfTheCpu) {
  std::string wrong[2];
  expect_no_errors(run([&](GpuRank& one, int rank) { wrong[rank] = one.check_everything(); }));
  EXPECT_EQ(wrong[0], "");
  EXPECT_EQ(wrong[1], "");
}

TEST_F(CudaHosts, DifferentCallsAreAnErrorOnAllRanks) {
  const auto met = run([](GpuRank& one, int rank) {
    one.comm.all_reduce(one.out.slice(0, 8'000'000), one.in.slice(0, 8'000'000),
                        rank == 0 ? DataType::kF32 : DataType::kI32, ReduceOp::kSum, one.stream);
    one.stream.sync();
  });
  for (const Met& rank : met) {
    EXPECT_EQ(rank.code, ErrorCode::kMismatch);
    EXPECT_NE(rank.text.find("all_reduce of 2000000 F32 by sum"), std::string::npos) << rank.text;
    EXPECT_NE(rank.text.find("all_reduce of 2000000 I32 by sum"), std::string::npos) << rank.text;
  }
}

TEST_F(CudaHosts, ADeadlineNamesTheRankThatHasNotJoined) {
  const auto met = run(
      [](GpuRank& one, int rank) {
        if (rank == 1) {
          while (!one.comm.error()) std::this_thread::yield();
          return;
        }
        one.comm.barrier(one.stream);
        one.stream.sync();
      },
      std::chrono::milliseconds(300));
  EXPECT_EQ(met[0].code, ErrorCode::kTimeout);
  EXPECT_NE(met[0].text.find("for rank 1"), std::string::npos) << met[0].text;
}

TEST_F(CudaHosts, AnAbortEndsACallThatWaits) {
  std::atomic<bool> is_enqueued{false};
  const auto met = run([&](GpuRank& one, int rank) {
    if (rank == 1) {
      while (!is_enqueued) std::this_thread::yield();
      return one.comm.abort();
    }
    one.comm.all_reduce(one.out.slice(0, 8'000'000), one.in.slice(0, 8'000'000), DataType::kF32, ReduceOp::kSum,
                        one.stream);
    is_enqueued = true;
    one.stream.sync();
  });
  EXPECT_EQ(met[0].code, ErrorCode::kAborted) << met[0].text;
  EXPECT_NE(met[0].text.find("rank 1"), std::string::npos) << met[0].text;
}

// --- several streams, and CUDA captures of the program ---

constexpr std::size_t kHalf = 8'000'000;

// Starts an all_reduce of one half of the buffers, whose bytes are all `value`.
void reduce_half(GpuRank& one, std::size_t half, unsigned char value, const Stream& stream) {
  stream.fill(one.in.slice(half * kHalf, kHalf), value);
  one.comm.all_reduce(one.out.slice(half * kHalf, kHalf), one.in.slice(half * kHalf, kHalf), DataType::kU8,
                      ReduceOp::kSum, stream);
}

// The number of bytes of the half that are not `value`.
std::size_t count_wrong(GpuRank& one, std::size_t half, unsigned char value) {
  one.stream.copy(one.host.slice(0, kHalf), one.out.slice(half * kHalf, kHalf));
  one.stream.sync();
  std::size_t wrong = 0;
  for (const unsigned char byte : one.host.host_read<unsigned char>(0, kHalf)) wrong += byte == value ? 0 : 1;
  return wrong;
}

TEST_F(CudaHosts, ACapturedCallDoesNotHideTheOrderOfTheOthers) {
  expect_no_errors(run([](GpuRank& one, int) {
    cudaStream_t const native = one.other.native();
    const Stream adopted = one.device.adopt(native), third = one.device.stream(StreamFlags::kNonBlocking);
    one.comm.barrier(one.stream);  // no rank waits for another one while that one opens its streams
    one.stream.sync();
    reduce_half(one, 0, 1, one.stream);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    one.comm.barrier(adopted);
    ASSERT_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
    reduce_half(one, 1, 3, third);  // comes after the first call, not only after the captured one
    third.sync();
    EXPECT_EQ(count_wrong(one, 0, 2), 0U);
    EXPECT_EQ(count_wrong(one, 1, 6), 0U);
    cudaGraphDestroy(graph);
  }));
}

TEST_F(CudaHosts, ACaptureAfterACallDoesNotTakeInTheNextOne) {
  expect_no_errors(run([](GpuRank& one, int) {
    cudaStream_t const native = one.other.native();
    reduce_half(one, 0, 1, one.other);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeRelaxed), cudaSuccess);
    reduce_half(one, 1, 3, one.stream);
    EXPECT_EQ(count_wrong(one, 1, 6), 0U);
    ASSERT_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
    std::size_t nodes = 1;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
    EXPECT_EQ(nodes, 0U);
    EXPECT_EQ(count_wrong(one, 0, 2), 0U);
    cudaGraphDestroy(graph);
  }));
}

// Neither the failure nor the end of a communicator may query a stream that captures.
TEST_F(CudaHosts, AFailureDuringACaptureLosesNeitherTheCaptureNorTheDevice) {
  std::atomic<int> captured{0};
  expect_no_errors(run([&](GpuRank& one, int rank) {
    cudaStream_t const native = one.other.native();
    const Stream adopted = one.device.adopt(native);
    std::optional<Communicator> half = one.comm.split(0, rank);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(native, cudaStreamCaptureModeRelaxed), cudaSuccess);
    half->barrier(adopted);
    ++captured;
    while (captured < 2) std::this_thread::yield();  // after an abort the other rank could not capture its call
    half->abort();
    half.reset();
    ASSERT_EQ(cudaStreamEndCapture(native, &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    reduce_half(one, 0, 1, one.stream);
    EXPECT_EQ(count_wrong(one, 0, 2), 0U);
  }));
}

SLIP_CHILD(CudaHosts, WaitForAKilledRank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options = on_host({});
    options.heartbeat = std::chrono::milliseconds(300);
    options.silence = std::chrono::milliseconds(1500);
    GpuRank one(info.id, info.nranks, info.rank, options);
    one.comm.barrier(one.stream);
    one.stream.sync();
    static_cast<void>(!::write(test::kLine, "j", 1));
    if (info.rank == info.nranks - 1) ::pause();
    try {
      one.comm.all_reduce(one.out.slice(0, 8'000'000), one.in.slice(0, 8'000'000), DataType::kF32, ReduceOp::kSum,
                          one.stream);
      one.stream.sync();
    } catch (const Error& error) {
      const Stream again = one.device.stream(StreamFlags::kNonBlocking);
      Communicator left = one.comm.shrink();
      left.all_reduce(one.out.slice(0, 4000), one.in.slice(0, 4000), DataType::kF32, ReduceOp::kSum, again);
      again.sync();
      return error.code() == ErrorCode::kRankLost ? "lost" : error.what();
    }
    return "no error";
  });
}

TEST_F(CudaHosts, AKilledProcessIsAnErrorOnTheOthersWhichShrink) {
  const std::vector<RankProcess> ranks = start("WaitForAKilledRank", 3, 3);
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "j");
  ranks[2].signal(SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].report(), "lost");
}

}  // namespace
}  // namespace slip
