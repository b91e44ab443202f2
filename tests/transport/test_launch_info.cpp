// What launchers say in the environment; the launchers themselves are in test_launchers.cpp.
#include <map>

#include "support/errors.hpp"
#include "transport/job/launch_info.hpp"

namespace slip::test::test_launch_info {
namespace {

using Environment = std::map<std::string, std::string>;

std::optional<transport::LaunchInfo> read(const Environment& environment) {
  return transport::read_launch_info([&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  });
}

testing::AssertionResult refused(const Environment& environment, std::initializer_list<std::string_view> words) {
  return fails([&] { static_cast<void>(read(environment)); }, ErrorCode::kInvalidValue, words);
}

// Changes some variables; an empty value removes one.
Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

const Environment kByHand{
    {"SLIP_RANK", "3"}, {"SLIP_NRANKS", "8"}, {"SLIP_LOCAL_RANK", "1"}, {"SLIP_ID", "node7:29500"}};
const Environment kTorchrun{{"RANK", "5"},           {"WORLD_SIZE", "16"},     {"LOCAL_RANK", "2"},
                            {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29400"}, {"TORCHELASTIC_RUN_ID", "r1"}};
const Environment kMpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "4"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                          {"PMIX_NAMESPACE", "1234567"}};
const Environment kSrun{{"SLURM_PROCID", "6"},
                        {"SLURM_NTASKS", "8"},
                        {"SLURM_LOCALID", "2"},
                        {"SLURM_JOB_ID", "77"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NUM_NODES", "2"},
                        {"SLURM_STEP_NODELIST", "rack2-[08-11,15],x"},
                        {"SLURM_LAUNCH_NODE_IPADDR", "192.0.2.9"}};
// As MPICH 4.0 sets them.
const Environment kMpiexec{{"PMI_RANK", "1"},        {"PMI_SIZE", "4"},        {"PMI_FD", "8"},
                           {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"}, {"HYDI_CONTROL_FD", "7"}};
// What srun --mpi=pmi2 and --mpi=pmix add to their own variables.
const Environment kPmi2{{"PMI_RANK", "6"}, {"PMI_SIZE", "8"}, {"PMI_FD", "9"}, {"PMI_JOBID", "77.0"}};
const Environment kPmix{{"PMIX_RANK", "6"},
                        {"PMIX_NAMESPACE", "slurm.pmix.77.0"},
                        {"PMIX_SERVER_URI41", "pmix-server.9;tcp4://127.0.0.1:4711"}};
// A pod of an indexed Job.
const Environment kPod{{"JOB_COMPLETION_INDEX", "2"}, {"HOSTNAME", "train-2"}};

TEST(LaunchInfos, NobodyLaunchedIt) { EXPECT_FALSE(read({{"RANK", "army"}, {"SLURM_PROCID", "0"}})); }

TEST(LaunchInfos, ByHand) {
  const transport::LaunchInfo info = *read(kByHand);
  EXPECT_EQ(info.rank, 3);
  EXPECT_EQ(info.nranks, 8);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.id, UniqueId::parse("node7:29500"));
  EXPECT_TRUE(info.id.rank0_listens());
  EXPECT_EQ(read(with(kByHand, kMpirun))->rank, 3);  // the variables set by hand win
}

TEST(LaunchInfos, ByHandInParts) {
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_NRANKS", ""}}), {"SLIP_RANK=3", "SLIP_NRANKS is not"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_RANK", ""}}), {"SLIP_NRANKS=8", "SLIP_RANK is not"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_ID", ""}}), {"SLIP_RANK=3", "SLIP_ID is not"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_RANK", "8"}}), {"SLIP_RANK=8", "SLIP_NRANKS=8"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_RANK", "3x"}}), {"SLIP_RANK=3x"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_RANK", "-1"}}), {"SLIP_RANK=-1"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_LOCAL_RANK", "9"}}), {"SLIP_LOCAL_RANK=9"}));
  EXPECT_TRUE(refused(with(kByHand, {{"SLIP_ID", "node7"}}), {"node7", "no port"}));
}

TEST(LaunchInfos, Torchrun) {
  const transport::LaunchInfo info = *read(kTorchrun);
  EXPECT_EQ(info.rank, 5);
  EXPECT_EQ(info.nranks, 16);
  EXPECT_EQ(info.local_rank, 2);
  EXPECT_EQ(info.id.host(), "head");
  EXPECT_EQ(info.id.port(), 29401);  // torchrun itself listens at 29400
  EXPECT_EQ(read(with(kTorchrun, {{"MASTER_PORT", "65535"}}))->id.port(), 65534);
  EXPECT_EQ(read(with(kTorchrun, {{"MASTER_ADDR", "::1"}}))->id.host(), "::1");
  EXPECT_EQ(read(with(kTorchrun, {{"SLIP_ID", "other:7"}}))->id.host(), "other");
  EXPECT_TRUE(refused(with(kTorchrun, {{"MASTER_PORT", ""}}), {"MASTER_ADDR='head'", "MASTER_PORT=''"}));
  EXPECT_TRUE(refused(with(kTorchrun, {{"WORLD_SIZE", ""}}), {"RANK=5", "WORLD_SIZE is not"}));
  EXPECT_TRUE(refused(with(kTorchrun, kMpirun), {"RANK=5", "WORLD_SIZE=16", "OMPI_COMM_WORLD_RANK=1"}));
}

TEST(LaunchInfos, Mpirun) {
  const transport::LaunchInfo info = *read(kMpirun);
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.nranks, 4);
  EXPECT_EQ(info.id.host().substr(0, 10), "unix:slip-");
  EXPECT_EQ(read(with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "2"}}))->id, info.id);
  EXPECT_NE(read(with(kMpirun, {{"PMIX_NAMESPACE", "1234568"}}))->id, info.id);
  EXPECT_EQ(read(with(kMpirun, {{"SLIP_ID", "head:7"}}))->id.host(), "head");
  EXPECT_TRUE(refused(with(kMpirun, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), {"4 ranks, 2 of them", "SLIP_ID"}));
  EXPECT_TRUE(refused(with(kMpirun, {{"PMIX_NAMESPACE", ""}}), {"PMIX_NAMESPACE", "SLIP_ID"}));
}

TEST(LaunchInfos, Srun) {
  const transport::LaunchInfo info = *read(kSrun);
  EXPECT_EQ(info.rank, 6);
  EXPECT_EQ(info.nranks, 8);
  EXPECT_EQ(info.local_rank, 2);
  EXPECT_EQ(info.id.host(), "rack2-08");
  EXPECT_GE(info.id.port(), 20'000);
  EXPECT_LT(info.id.port(), 30'000);
  EXPECT_EQ(read(with(kSrun, {{"SLURM_PROCID", "0"}}))->id, info.id);
  EXPECT_NE(read(with(kSrun, {{"SLURM_STEP_ID", "1"}}))->id, info.id);
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_NUM_NODES", "1"}}))->id.host().substr(0, 10), "unix:slip-");
  EXPECT_EQ(read(with(kSrun, {{"SLURM_STEP_NODELIST", ""}}))->id.host(), "192.0.2.9");
  EXPECT_EQ(read(with(kSrun, kMpirun))->launcher, "mpirun");
  EXPECT_TRUE(refused(with(kSrun, {{"SLURM_JOB_ID", ""}}), {"SLURM_JOB_ID"}));
}

TEST(LaunchInfos, SrunWithPmi2OrPmix) {
  const transport::LaunchInfo info = *read(kSrun);
  for (const Environment& more : {kPmi2, kPmix}) {
    const transport::LaunchInfo with_more = *read(with(kSrun, more));
    EXPECT_EQ(with_more.launcher, "srun");
    EXPECT_EQ(with_more.rank, 6);
    EXPECT_EQ(with_more.nranks, 8);
    EXPECT_EQ(with_more.id, info.id);
  }
}

TEST(LaunchInfos, Mpiexec) {
  const transport::LaunchInfo info = *read(kMpiexec);
  EXPECT_EQ(info.launcher, "mpiexec");
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.nranks, 4);
  EXPECT_EQ(info.local_rank, 1);
  EXPECT_EQ(info.id.host().substr(0, 10), "unix:slip-");
  EXPECT_EQ(read(with(kMpiexec, {{"PMI_RANK", "2"}}))->id, info.id);
  EXPECT_EQ(read(with(kMpiexec, {{"SLIP_ID", "head:7"}}))->id.host(), "head");
  // Hydra that runs inside a Slurm job: the variables of Slurm are those of its own helper processes.
  EXPECT_EQ(read(with(kSrun, kMpiexec))->launcher, "mpiexec");
  EXPECT_EQ(read(with(kSrun, kMpiexec))->rank, 1);
  EXPECT_TRUE(refused(with(kMpiexec, {{"MPI_LOCALNRANKS", "2"}}), {"4 ranks, 2 of them", "-genv SLIP_ID"}));
  EXPECT_TRUE(refused(with(kMpiexec, {{"MPI_LOCALNRANKS", ""}}), {"some of them", "SLIP_ID"}));
  EXPECT_TRUE(refused(with(kMpiexec, {{"PMI_SIZE", ""}}), {"PMI_RANK=1", "PMI_SIZE is not"}));
  EXPECT_TRUE(refused(with(kTorchrun, kMpiexec), {"RANK=5", "PMI_RANK=1", "PMI_SIZE=4"}));
}

TEST(LaunchInfos, PmixAlone) {
  EXPECT_TRUE(refused(kPmix, {"PMIX_RANK=6", "SLIP_NRANKS", "SLIP_ID"}));
  const transport::LaunchInfo info = *read(with(kPmix, {{"SLIP_NRANKS", "8"}, {"SLIP_ID", "head:7"}}));
  EXPECT_EQ(info.launcher, "PMIx");
  EXPECT_EQ(info.rank, 6);
  EXPECT_EQ(info.nranks, 8);
  EXPECT_TRUE(refused(with(kPmix, {{"SLIP_NRANKS", "8"}}), {"PMIX_RANK=6", "SLIP_ID is not", "host:port"}));
}

TEST(LaunchInfos, KubernetesIndexedJob) {
  EXPECT_FALSE(read(kPod));  // independent pods
  const transport::LaunchInfo info = *read(with(kPod, {{"SLIP_NRANKS", "4"}, {"SLIP_ID", "train-0.workers:29500"}}));
  EXPECT_EQ(info.launcher, "Kubernetes");
  EXPECT_EQ(info.rank, 2);
  EXPECT_EQ(info.nranks, 4);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.id.host(), "train-0.workers");
  const Environment torch{{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "train-0.workers"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(read(with(kPod, torch))->launcher, "Kubernetes");
  EXPECT_EQ(read(with(kPod, torch))->rank, 2);
  EXPECT_EQ(read(with(kPod, torch))->id.port(), 29501);
  EXPECT_TRUE(refused(with(kPod, {{"SLIP_NRANKS", "4"}}), {"JOB_COMPLETION_INDEX=2", "train-0.SERVICE:port"}));
  EXPECT_TRUE(refused(with(kPod, {{"WORLD_SIZE", "4"}}), {"rank 2 of 4", "train-0.SERVICE:port"}));
  EXPECT_TRUE(refused(with(kPod, {{"SLIP_NRANKS", "2"}, {"SLIP_ID", "a:1"}}), {"JOB_COMPLETION_INDEX=2", "0 to 1"}));
  EXPECT_TRUE(refused(with(kPod, {{"SLIP_ID", "a:1"}}), {"JOB_COMPLETION_INDEX=2", "SLIP_NRANKS"}));
}

// A PyTorchJob sets the variables of torchrun without LOCAL_RANK.
TEST(LaunchInfos, KubernetesPyTorchJob) {
  const transport::LaunchInfo info = *read({{"RANK", "1"},
                                            {"WORLD_SIZE", "3"},
                                            {"MASTER_ADDR", "train-master-0"},
                                            {"MASTER_PORT", "23456"},
                                            {"JOB_COMPLETION_INDEX", "0"}});
  EXPECT_EQ(info.rank, 1);
  EXPECT_EQ(info.nranks, 3);
  EXPECT_EQ(info.local_rank, 0);
  EXPECT_EQ(info.id.host(), "train-master-0");
}

TEST(LaunchInfos, FirstOfSlurmsHosts) {
  EXPECT_EQ(transport::first_host("n3"), "n3");
  EXPECT_EQ(transport::first_host("n3,n7"), "n3");
  EXPECT_EQ(transport::first_host("n[3-7]"), "n3");
  EXPECT_EQ(transport::first_host("a,n[3-7]"), "a");
  EXPECT_EQ(transport::first_host("rack[01-02]-n[4,9].x,b"), "rack01-n4.x");
  EXPECT_EQ(transport::first_host("n[3"), "");
}

}  // namespace
}  // namespace slip::test::test_launch_info
