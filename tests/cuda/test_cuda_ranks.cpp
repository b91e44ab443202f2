// Communicators on cuda:0: several ranks on one GPU, as threads of one process and as processes.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "gpu_rank.hpp"
#include "support/errors.hpp"
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

class CudaRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
  }
  // All ranks are constructed before the first call, and destroyed after the last: see GpuRank.
  static std::vector<Met> run(int count, const std::function<void(GpuRank&, int)>& body,
                              const CommunicatorOptions& options = {}) {
    const UniqueId id = local_id();
    std::vector<std::unique_ptr<GpuRank>> ranks(static_cast<std::size_t>(count));
    std::vector<Met> met = as_ranks(count, [&](int rank) {
      auto& mine = ranks[static_cast<std::size_t>(rank)];
      mine = std::make_unique<GpuRank>(id, count, rank, options);
      body(*mine, rank);
    });
    return met;
  }
};

void expect_right_results(int count, const std::vector<Met>& met, const std::vector<std::string>& wrong) {
  expect_no_errors(met);
  for (int rank = 0; rank < count; ++rank) EXPECT_EQ(wrong[static_cast<std::size_t>(rank)], "");
}

TEST_F(CudaRanks, ThreadsGetTheResultsOfTheCpu) {
  for (const int count : {1, 2, 3}) {
    std::vector<std::string> wrong(static_cast<std::size_t>(count));
    const auto met =
        run(count, [&](GpuRank& one, int rank) { wrong[static_cast<std::size_t>(rank)] = one.check_everything(); });
    expect_right_results(count, met, wrong);
  }
}

SLIP_CHILD(CudaRanks, Everything) {
  play([](const transport::LaunchInfo& info) {
    GpuRank one(info.id, info.nranks, info.rank);
    const std::string wrong = one.check_everything();
    return wrong.empty() ? std::string("right") : wrong;
  });
}

TEST_F(CudaRanks, ProcessesGetTheResultsOfTheCpu) {
  for (const int count : {2, 3}) {
    const UniqueId id = local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < count; ++rank) ranks.emplace_back("CudaRanks.Everything", id, count, rank);
    for (RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "right");
  }
}

TEST_F(CudaRanks, DifferentCallsAreAnErrorOnAllRanks) {
  const auto met = run(2, [](GpuRank& one, int rank) {
    one.comm.all_reduce(one.out.slice(0, 400), one.in.slice(0, 400), rank == 0 ? DataType::kF32 : DataType::kI32,
                        ReduceOp::kSum, one.stream);
    one.stream.sync();
  });
  for (const Met& rank : met) {
    EXPECT_EQ(rank.code, ErrorCode::kMismatch);
    EXPECT_NE(rank.text.find("all_reduce of 100 F32 by sum"), std::string::npos) << rank.text;
    EXPECT_NE(rank.text.find("all_reduce of 100 I32 by sum"), std::string::npos) << rank.text;
  }
}

TEST_F(CudaRanks, ADeadlineNamesTheRankThatHasNotJoined) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(300);
  const auto met = run(
      3,
      [](GpuRank& one, int rank) {
        if (rank == 1) {
          while (!one.comm.error()) std::this_thread::yield();
          return;
        }
        one.comm.barrier(one.stream);
        one.stream.sync();
      },
      options);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(met[static_cast<std::size_t>(rank)].code, ErrorCode::kTimeout);
    EXPECT_NE(met[static_cast<std::size_t>(rank)].text.find("for rank 1"), std::string::npos)
        << met[static_cast<std::size_t>(rank)].text;
  }
}

TEST_F(CudaRanks, ARankWithoutMemoryIsAnErrorOnAllRanks) {
  expect_no_errors(run(2, [](GpuRank& one, int rank) {
    EXPECT_TRUE(test::fails([&] { static_cast<void>(one.comm.allocate(rank == 1 ? std::size_t{1} << 60 : 100)); },
                            ErrorCode::kOutOfMemory, {"rank 1", "1152921504606846976 bytes"}));
    EXPECT_EQ(one.comm.allocate(100).bytes(), 100U) << "the communicator stays usable";
  }));
}

TEST_F(CudaRanks, AnAbortEndsACallThatWaits) {
  const auto met = run(2, [](GpuRank& one, int rank) {
    if (rank == 1) return one.comm.abort();
    one.comm.barrier(one.stream);
    one.stream.sync();
  });
  EXPECT_TRUE(met[0].code) << "rank 0 waited for a rank that aborted";
}

// The error that a rank process gets from `body`.
std::string error_of_messages(const transport::LaunchInfo& info, const std::function<void(GpuRank&)>& body) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(300);
  GpuRank one(info.id, info.nranks, info.rank, options);
  try {
    body(one);
    one.stream.sync();
    while (!one.comm.error()) std::this_thread::yield();
    throw Error(*one.comm.error());
  } catch (const Error& error) {
    return error.what();
  }
}

SLIP_CHILD(CudaRanks, MessagesOfDifferentSizes) {
  play([](const transport::LaunchInfo& info) {
    return error_of_messages(info, [&](GpuRank& one) {
      if (info.rank == 0) one.comm.send(one.in.slice(0, 100), 1, one.stream);
      else one.comm.recv(one.out.slice(0, 5'000'000), 0, one.stream);
    });
  });
}
SLIP_CHILD(CudaRanks, ReceiveThatNobodySends) {
  play([](const transport::LaunchInfo& info) {
    return error_of_messages(info, [&](GpuRank& one) {
      if (info.rank == 1) one.comm.recv(one.out.slice(0, 100), 0, one.stream);
    });
  });
}
SLIP_CHILD(CudaRanks, SendOfTheLastThatNobodyReceives) {
  play([](const transport::LaunchInfo& info) {
    return error_of_messages(info, [&](GpuRank& one) {
      if (info.rank == 1) one.comm.send(one.in.slice(0, 100), 0, one.stream);
    });
  });
}
SLIP_CHILD(CudaRanks, SendThatNobodyReceives) {
  play([](const transport::LaunchInfo& info) {
    return error_of_messages(info, [&](GpuRank& one) {
      if (info.rank == 0) one.comm.send(one.in.slice(0, 100), 1, one.stream);
    });
  });
}

void expect_errors(const std::string& child, const std::vector<std::string>& words) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.emplace_back(child, id, 2, rank);
  for (RankProcess& rank : ranks) {
    const std::string text = rank.report();
    for (const std::string& word : words) EXPECT_NE(text.find(word), std::string::npos) << child << ": " << text;
  }
}

TEST_F(CudaRanks, MessagesBetweenProcessesThatDoNotMatchAreErrors) {
  expect_errors("CudaRanks.MessagesOfDifferentSizes", {"100", "5000000"});
  expect_errors("CudaRanks.ReceiveThatNobodySends", {"0.3 s", "in a message"});
  expect_errors("CudaRanks.SendOfTheLastThatNobodyReceives", {"0.3 s", "in a message"});
  expect_errors("CudaRanks.SendThatNobodyReceives", {"0.3 s", "in a message"});
}

SLIP_CHILD(CudaRanks, WaitForAKilledRank) {
  play([](const transport::LaunchInfo& info) -> std::string {
    CommunicatorOptions options;
    options.heartbeat = std::chrono::milliseconds(300);
    options.silence = std::chrono::milliseconds(1500);
    GpuRank one(info.id, info.nranks, info.rank, options);
    one.comm.barrier(one.stream);
    one.stream.sync();
    static_cast<void>(!::write(test::kLine, "j", 1));
    if (info.rank == info.nranks - 1) ::pause();
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
      return error.code() == ErrorCode::kRankLost ? "lost" : error.what();
    }
    return "no error";
  });
}

TEST_F(CudaRanks, AKilledProcessIsAnErrorOnTheOthersWhichShrink) {
  const UniqueId id = local_id();
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back("CudaRanks.WaitForAKilledRank", id, 3, rank);
  for (RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "j");
  ranks[2].signal(SIGKILL);
  for (const int rank : {0, 1}) EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].report(), "lost");
}

// --- processes under MPS: their kernels run at the same time ---

// The MPS daemon, with folders of its own, while the test runs.
class CudaMps : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_gpu()) GTEST_SKIP() << "no GPU here";
    std::string folder = (std::filesystem::temp_directory_path() / "slip-mps-XXXXXX").string();
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    std::filesystem::create_directory(folder_ + "/pipe");
    if (std::system((variables() + " nvidia-cuda-mps-control -d >/dev/null 2>&1").c_str()) != 0)
      GTEST_SKIP() << "no MPS here";
    runs_ = true;
  }
  void TearDown() override {
    if (runs_)
      static_cast<void>(!std::system(("echo quit | " + variables() + " nvidia-cuda-mps-control >/dev/null").c_str()));
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }
  std::vector<RankProcess> start(const std::string& child, int count) const {
    const UniqueId id = local_id();
    std::vector<RankProcess> ranks;
    for (int rank = 0; rank < count; ++rank)
      ranks.emplace_back(child, id, count, rank,
                         std::map<std::string, std::string>{{"CUDA_MPS_PIPE_DIRECTORY", folder_ + "/pipe"},
                                                            {"CUDA_MPS_LOG_DIRECTORY", folder_}});
    return ranks;
  }

 private:
  std::string variables() const {
    return "CUDA_MPS_PIPE_DIRECTORY=" + folder_ + "/pipe CUDA_MPS_LOG_DIRECTORY=" + folder_;
  }
  std::string folder_;
  bool runs_ = false;
};

TEST_F(CudaMps, ProcessesGetTheResultsOfTheCpu) {
  for (const int count : {2, 3}) {
    for (RankProcess& rank : start("CudaRanks.Everything", count)) EXPECT_EQ(rank.report(), "right");
  }
}

// Each rank in turn comes late, with a buffer that no other process has mapped, while the kernels of the others wait.
SLIP_CHILD(CudaMps, NewMemoryWhileTheOthersWait) {
  play([](const transport::LaunchInfo& info) -> std::string {
    constexpr std::size_t kElements = 2'000'000, kBytes = kElements * sizeof(std::int32_t);
    GpuRank one(info.id, info.nranks, info.rank);
    std::vector<Buffer> fresh;  // freeing one would wait for the kernels
    for (int late = 0; late < info.nranks; ++late) {
      Buffer* out = &one.out;
      if (late == info.rank) {
        char word = 0;
        if (::read(test::kLine, &word, 1) != 1) return "the test is gone";
        out = &fresh.emplace_back(one.device.alloc(kBytes, MemoryKind::kDevice, "fresh"));
      }
      for (std::int32_t& value : one.host.host_write<std::int32_t>(0, kElements)) value = info.rank + late + 1;
      one.stream.copy(one.in.slice(0, kBytes), one.host.slice(0, kBytes));
      one.comm.all_reduce(out->slice(0, kBytes), one.in.slice(0, kBytes), DataType::kI32, ReduceOp::kSum, one.stream);
      if (late != info.rank) static_cast<void>(!::write(test::kLine, "w", 1));
      one.stream.copy(one.host.slice(0, kBytes), out->slice(0, kBytes));
      one.stream.sync();
      const int expected = info.nranks * (info.nranks + 1) / 2 + info.nranks * late;
      for (const std::int32_t value : one.host.host_read<std::int32_t>(0, kElements))
        if (value != expected) return fmt::format("rank {} late: {} instead of {}", late, value, expected);
    }
    one.comm.finalize();
    return "right";
  });
}

TEST_F(CudaMps, NewMemoryWhileTheOthersWait) {
  for (const int count : {2, 3}) {
    std::vector<RankProcess> ranks = start("CudaMps.NewMemoryWhileTheOthersWait", count);
    for (int late = 0; late < count; ++late) {
      for (int rank = 0; rank < count; ++rank) {
        if (rank == late) continue;
        EXPECT_EQ(ranks[static_cast<std::size_t>(rank)].hear(1), "w");
      }
      ranks[static_cast<std::size_t>(late)].send('g');
    }
    for (RankProcess& rank : ranks) EXPECT_EQ(rank.report(), "right");
  }
}

}  // namespace
}  // namespace slip
