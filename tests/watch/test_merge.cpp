// Traces of the ranks of a job: the file of each rank, and the merged trace.
#include <gtest/gtest.h>

#include "slip/check.hpp"
#include "slip/figures.hpp"
#include "transport/job/launch_info.hpp"
#include "watch/made_trace.hpp"
#include "watch/support.hpp"
#include "watch/trace/trace_data.hpp"

namespace slip::test_merge {
namespace {

using watch_test::Folder;
using watch_test::MadeTrace;

constexpr Picos kMs = 1'000'000'000;

TEST(TracePath, RanksOfAJobNeverWriteTheSameFile) {
  const base::JobRank second{1, 4};
  EXPECT_EQ(watch::trace_path("run.json", second, 77), "run.1.json");
  EXPECT_EQ(watch::trace_path("a.b/run.json", second, 77), "a.b/run.1.json");
  EXPECT_EQ(watch::trace_path("a.b/run", second, 77), "a.b/run.1");
  EXPECT_EQ(watch::trace_path("/x/.run", second, 77), "/x/.run.1");
  EXPECT_EQ(watch::trace_path("my.run.json", second, 77), "my.run.1.json");
}

TEST(TracePath, PatternsAreFilledIn) {
  EXPECT_EQ(watch::trace_path("f.%r.json", base::JobRank{3, 4}, 77), "f.3.json");
  EXPECT_EQ(watch::trace_path("%r/f.%r.%p.json", base::JobRank{3, 4}, 77), "3/f.3.77.json");
  EXPECT_EQ(watch::trace_path("f.%p.json", base::JobRank{3, 4}, 77), "f.77.json");
  EXPECT_EQ(watch::trace_path("f.%r.json", std::nullopt, 77), "f.0.json");
  EXPECT_EQ(watch::trace_path("f.json", std::nullopt, 77), "f.json");
  EXPECT_EQ(watch::trace_path("f.json", base::JobRank{0, 1}, 77), "f.json") << "a job of one rank";
}

// job_rank() agrees with joining a job, for each launcher. Without a launcher there is no rank.
TEST(JobRank, IsTheOneOfTheLauncher) {
  using Set = std::map<std::string, std::string>;
  const Set launched[] = {{{"SLIP_RANK", "1"}, {"SLIP_NRANKS", "3"}, {"SLIP_ID", "unix:x"}},
                          {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
                          {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"PMIX_NAMESPACE", "job"}},
                          {{"SLURM_STEP_ID", "0"},
                           {"SLURM_JOB_ID", "7"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_STEP_NUM_TASKS", "3"},
                           {"SLURM_STEP_NUM_NODES", "1"}},
                          {{"SLURM_STEP_ID", "0"},
                           {"SLURM_JOB_ID", "7"},
                           {"SLURM_PROCID", "1"},
                           {"SLURM_NTASKS", "3"},
                           {"SLURM_NNODES", "1"}},
                          {{"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}},
                          {{"PMI_RANK", "1"},
                           {"PMI_SIZE", "3"},
                           {"MPI_LOCALNRANKS", "3"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_NTASKS", "1"}},
                          {{"JOB_COMPLETION_INDEX", "1"}, {"SLIP_NRANKS", "3"}, {"SLIP_ID", "unix:x"}},
                          {{"JOB_COMPLETION_INDEX", "1"}, {"WORLD_SIZE", "3"}, {"SLIP_ID", "unix:x"}},
                          {{"PMIX_RANK", "1"}, {"SLIP_NRANKS", "3"}, {"SLIP_ID", "unix:x"}},
                          // mpirun inside a Slurm job has the variables of both.
                          {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"SLIP_ID", "unix:x"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_NTASKS", "1"}}};
  for (const Set& set : launched) {
    const auto variables = [&](const char* name) { return set.contains(name) ? set.at(name) : std::string(); };
    const std::optional<base::JobRank> rank = base::read_job_rank(variables);
    const std::optional<transport::LaunchInfo> info = transport::read_launch_info(variables);
    ASSERT_TRUE(rank && info) << set.begin()->first;
    EXPECT_EQ(rank->rank, info->rank) << set.begin()->first;
    EXPECT_EQ(rank->ranks, info->nranks) << set.begin()->first;
  }
  const Set none[] = {{},
                      {{"RANK", "1"}, {"WORLD_SIZE", "3"}},
                      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "3"}},  // a batch script
                      {{"SLIP_RANK", "three"}, {"SLIP_NRANKS", "3"}},
                      {{"SLIP_RANK", "3"}, {"SLIP_NRANKS", "3"}}};
  for (const Set& set : none)
    EXPECT_FALSE(
        base::read_job_rank([&](const char* name) { return set.contains(name) ? set.at(name) : std::string(); }));
}

// A rank with one kernel in stream 1 and one all_reduce in stream 2, which waits for it. Its clock began at `zero`.
TraceData rank_trace(int rank, int ranks, std::int64_t zero_ns, Picos kernel, Picos reduced, const char* boot = "b") {
  MadeTrace made;
  const std::uint64_t end =
      made.op({.stream = 1, .queued = kMs / 2, .started = kMs, .ended = kernel, .name = "compute"});
  made.wait(2, 1, end);
  made.op({.stream = 2,
           .engine = Engine::kCommunication,
           .queued = kMs / 2,
           .started = kernel,
           .ended = reduced,
           .name = "all_reduce"});
  TraceData data = made.data();
  data.buffers.push_back({.id = 1, .device = 1, .bytes = 64, .name = "gradients"});
  data.process = {rank, ranks, zero_ns, 1'700'000'000'000'000'000 + zero_ns, boot};
  return data;
}

TEST(Merge, RanksAreOnOneClockAndApart) {
  // Rank 1's clock began 3 ms later: its 2 ms are 5 ms of rank 0's clock.
  const TraceData traces[] = {rank_trace(1, 2, 8'000'000, 4 * kMs, 9 * kMs),
                              rank_trace(0, 2, 5'000'000, 3 * kMs, 12 * kMs)};
  ASSERT_TRUE(are_ranks_of_one_job(traces));
  const TraceData merged = merge_traces(traces);
  ASSERT_EQ(merged.devices.size(), 2U);
  EXPECT_EQ(merged.devices[0].rank, 0);
  EXPECT_EQ(merged.devices[1].rank, 1);
  EXPECT_EQ(merged.devices[1].id_there, 1U);
  const auto spans = merged.spans();
  ASSERT_EQ(spans.size(), 4U);
  EXPECT_EQ(spans[0].device, 1U);
  EXPECT_EQ(spans[0].ended, 3 * kMs);
  EXPECT_EQ(spans[2].device, 2U);
  EXPECT_EQ(spans[2].started, 4 * kMs);
  EXPECT_EQ(spans[2].ended, 7 * kMs);
  EXPECT_EQ(spans[3].ended, 12 * kMs) << "the all_reduce ended at the same moment on both";
  EXPECT_NE(spans[0].stream, spans[2].stream);
  EXPECT_EQ(merged.streams().size(), 4U);
  EXPECT_EQ(merged.buffers.size(), 2U);
  EXPECT_EQ(merged.edges().size(), 2U);
  EXPECT_TRUE(check_trace(merged).clean());
  const Figures all = figures(spans);
  EXPECT_EQ(all.communication, 9 * kMs + 5 * kMs);
  EXPECT_EQ(all.communication_exposed, all.communication);
}

TEST(Merge, HostsAreAlignedByTheTimeOfTheWorld) {
  TraceData far = rank_trace(1, 2, 0, 2 * kMs, 3 * kMs, "another boot");
  far.process.since_boot_ns = 123'456'789'000;  // has no meaning on another host
  far.process.since_1970_ns += 1'000'000;
  const TraceData traces[] = {rank_trace(0, 2, 0, 2 * kMs, 3 * kMs), far};
  EXPECT_EQ(merge_traces(traces).spans()[2].started, 2 * kMs);
}

TEST(Merge, OnlyRanksOfOneJobAreMerged) {
  const TraceData first = rank_trace(0, 2, 0, 2 * kMs, 3 * kMs);
  const auto with = [&](const TraceData& other) {
    const TraceData traces[] = {first, other};
    const bool merged = are_ranks_of_one_job(traces);
    if (!merged) {
      EXPECT_THROW(static_cast<void>(merge_traces(traces)), Error);
    }
    return merged;
  };
  EXPECT_TRUE(with(rank_trace(1, 2, 0, 2 * kMs, 3 * kMs)));
  EXPECT_FALSE(with(first)) << "the same rank twice";
  EXPECT_FALSE(with(rank_trace(1, 3, 0, 2 * kMs, 3 * kMs))) << "of a larger job";
  EXPECT_FALSE(with(rank_trace(1, 2, 3'600'000'000'000, 2 * kMs, 3 * kMs))) << "an hour later";
  TraceData alone = first;
  alone.process = {};
  EXPECT_FALSE(with(alone)) << "of no job";
  EXPECT_FALSE(are_ranks_of_one_job({&first, 1}));
}

TEST(Merge, TheProcessAndTheRanksAreWrittenAndReadBack) {
  const Folder folder;
  const TraceData traces[] = {rank_trace(0, 2, 5, 2 * kMs, 3 * kMs), rank_trace(1, 2, 8, 2 * kMs, 3 * kMs)};
  write_trace(traces[1], folder.file("r.json"));
  const TraceData read = read_trace(folder.file("r.json"));
  EXPECT_EQ(read.process.rank, 1);
  EXPECT_EQ(read.process.ranks, 2);
  EXPECT_EQ(read.process.since_boot_ns, 8);
  EXPECT_EQ(read.process.since_1970_ns, traces[1].process.since_1970_ns);
  EXPECT_EQ(read.process.boot, "b");
  const TraceData merged = merge_traces(traces);
  write_trace(merged, folder.file("m.json"));
  const TraceData again = read_trace(folder.file("m.json"));
  watch_test::expect_same(merged, again);
  ASSERT_EQ(again.devices.size(), 2U);
  EXPECT_EQ(again.devices[1].rank, 1);
  EXPECT_EQ(again.devices[1].id_there, 1U);
}

}  // namespace
}  // namespace slip::test_merge
