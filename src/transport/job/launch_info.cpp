#include "transport/job/launch_info.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>

#include "base/env.hpp"
#include "base/quantity_text.hpp"
#include "slip/error.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/job/placement.hpp"

namespace slip::transport {
namespace {

// Ports that are derived from a job's id are in this range, below the ephemeral ports of the system.
constexpr std::uint64_t kFirstPort = 20'000, kPorts = 10'000;

[[noreturn]] void fail(const std::string& text) { throw Error(ErrorCode::kInvalidValue, text, {}); }

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::string text(const char* name) const { return variables_(name); }
  bool has(const char* name) const { return !text(name).empty(); }

  int number(const char* name, int low, int high) const {
    const std::string value = text(name);
    const std::optional<int> result = base::parse_number(value, low, high);
    if (!result) fail(fmt::format("{}={}: must be a whole number from {} to {}", name, value, low, high));
    return *result;
  }

  // Rank and count, if they are set; one without the other is an error. The id is that of SLIP_ID, for this job; it is
  // not valid if SLIP_ID is not set.
  std::optional<LaunchInfo> ranks(const char* launcher, const char* rank, const char* nranks, const char* local,
                                  const std::string& job) const {
    if (!has(rank) && !has(nranks)) return std::nullopt;
    if (!has(rank) || !has(nranks))
      fail(fmt::format("{}={} is set and {} is not: a rank needs both", has(rank) ? rank : nranks,
                       text(has(rank) ? rank : nranks), has(rank) ? nranks : rank));
    LaunchInfo result;
    result.launcher = launcher;
    result.nranks = number(nranks, 1, 1 << 20);
    result.rank = number(rank, 0, 1 << 20);
    if (result.rank >= result.nranks)
      fail(fmt::format("{}={} and {}={}: ranks are 0 to {}", rank, result.rank, nranks, result.nranks,
                       result.nranks - 1));
    if (has(local)) result.local_rank = number(local, 0, result.nranks - 1);
    if (has("SLIP_ID")) result.id = UniqueId::parse(text("SLIP_ID"), job, {});
    return result;
  }

 private:
  const Variables& variables_;
};

// On one host the root listens at a Unix socket whose name is derived from the job's name. The name contains the user,
// because launchers of different users may give the same job number. With SLIP_SECRET no other user can predict the
// name.
UniqueId id_on_this_host(const std::string& job) {
  const Secret name = derive(shared_secret(job, true), "slip name");
  std::uint64_t number = 0;
  std::memcpy(&number, name.data(), sizeof(number));
  return UniqueId::parse(fmt::format("unix:slip-{}-{:016x}", ::geteuid(), number), job, {});
}

std::string host_port(const std::string& host, std::uint64_t port) {
  const bool six = host.find(':') != std::string::npos;
  return six ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

// The pod with index 0 of an indexed Job. The host name of each pod ends with its own index.
std::string first_pod(const Reader& read) {
  const std::string own = read.text("HOSTNAME"), index = "-" + read.text("JOB_COMPLETION_INDEX");
  return own.ends_with(index) ? own.substr(0, own.size() - index.size()) + "-0" : "JOB-0";
}

std::optional<LaunchInfo> by_hand(const Reader& read) {
  const char* rank = "SLIP_RANK";
  const char* launcher = "slip launch";
  if (!read.has(rank) && read.has("SLIP_NRANKS")) {
    const bool pod = read.has("JOB_COMPLETION_INDEX");
    if (pod || read.has("PMIX_RANK")) rank = pod ? "JOB_COMPLETION_INDEX" : "PMIX_RANK";
    if (pod || read.has("PMIX_RANK")) launcher = pod ? "Kubernetes" : "PMIx";
  }
  std::optional<LaunchInfo> info = read.ranks(launcher, rank, "SLIP_NRANKS", "SLIP_LOCAL_RANK", {});
  if (info && !info->id.valid())
    fail(
        fmt::format("{}={} and SLIP_NRANKS={} are set and SLIP_ID is not: it says where rank 0 listens, as {}, or "
                    "unix:name if all ranks are on one host",
                    rank, info->rank, info->nranks,
                    read.has("JOB_COMPLETION_INDEX") ? first_pod(read) + ".SERVICE:port" : "host:port"));
  return info;
}

std::optional<LaunchInfo> by_torchrun(const Reader& read) {
  const bool pod = !read.has("RANK") && read.has("JOB_COMPLETION_INDEX");
  // RANK and WORLD_SIZE are common names: without an address they do not come from torchrun. Only Kubernetes sets
  // JOB_COMPLETION_INDEX.
  const bool has_address = read.has("MASTER_ADDR") || read.has("MASTER_PORT");
  if (pod ? !read.has("WORLD_SIZE") : !has_address) return std::nullopt;
  const std::string job = "torchrun " + read.text("TORCHELASTIC_RUN_ID");
  std::optional<LaunchInfo> info = read.ranks(pod ? "Kubernetes" : "torchrun", pod ? "JOB_COMPLETION_INDEX" : "RANK",
                                              "WORLD_SIZE", "LOCAL_RANK", job);
  if (!info || info->id.valid()) return info;
  if (!read.has("MASTER_ADDR") || !read.has("MASTER_PORT"))
    fail(fmt::format("MASTER_ADDR='{}' and MASTER_PORT='{}': rank {} of {} needs both, or SLIP_ID={}",
                     read.text("MASTER_ADDR"), read.text("MASTER_PORT"), info->rank, info->nranks,
                     pod ? first_pod(read) + ".SERVICE:port" : "host:port"));
  const int port = read.number("MASTER_PORT", 1, 65'535);
  const int next_port = port < 65'535 ? port + 1 : port - 1;  // torchrun itself listens at MASTER_PORT
  info->id = UniqueId::parse(host_port(read.text("MASTER_ADDR"), static_cast<std::uint64_t>(next_port)), job, {});
  return info;
}

// Throws if the variable does not say that all ranks are on this host. `option`: how the launcher sets SLIP_ID.
void require_one_host(const Reader& read, const LaunchInfo& info, const char* local_size, const char* option) {
  if (read.has(local_size) && read.number(local_size, 1, 1 << 20) == info.nranks) return;
  fail(
      fmt::format("{0} started {1} ranks, {2} of them on this host, and its variables name no address: set SLIP_ID "
                  "to a host:port where rank 0 can listen ({0} {3} ...)",
                  info.launcher, info.nranks, read.has(local_size) ? read.text(local_size) : "some", option));
}

std::string mpi_job(const Reader& read) {
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid"}) {
    if (read.has(name)) return "mpirun " + read.text(name);
  }
  return {};
}

std::optional<LaunchInfo> by_mpirun(const Reader& read) {
  const std::string job = mpi_job(read);
  std::optional<LaunchInfo> info =
      read.ranks("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", job);
  if (!info || info->id.valid()) return info;
  require_one_host(read, *info, "OMPI_COMM_WORLD_LOCAL_SIZE", "-x SLIP_ID=host:port");
  if (job.empty())
    fail(
        "mpirun gave no PMIX_NAMESPACE, by which ranks of one job know each other: set SLIP_ID, for example to "
        "unix:NAME with any name (mpirun -x SLIP_ID=unix:NAME ...)");
  info->id = id_on_this_host(job);
  return info;
}

// The process that started the ranks of this host, as "PID.START": the nearest ancestor without the variable in its
// environment. It identifies the job if the launcher sets no variable for that. Empty: not found.
std::string starter_of(const std::string& variable) {
  constexpr int kMaxDepth = 64;
  std::int32_t pid = ::getppid();
  for (int depth = 0; depth < kMaxDepth && pid > 0; ++depth) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid));
    const std::string variables = '\0' + std::string(std::istreambuf_iterator<char>(file), {});
    const ProcessState state = process_state(std::to_string(pid));
    if (variables.find('\0' + variable + '=') == std::string::npos) return fmt::format("{}.{}", pid, state.started);
    pid = state.parent;
  }
  return {};
}

// Hydra, the launcher of MPICH and Intel MPI, and others with its variables, like flux run.
std::optional<LaunchInfo> by_mpiexec(const Reader& read) {
  const char* const local_size = "MPI_LOCALNRANKS";
  // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE, too, but Slurm's own variables contain more. Hydra also runs inside a
  // Slurm job: then MPI_LOCALNRANKS is set.
  if (read.has("SLURM_STEP_ID") && !read.has(local_size)) return std::nullopt;
  std::optional<LaunchInfo> info = read.ranks("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "mpiexec");
  if (!info || info->id.valid()) return info;
  require_one_host(read, *info, local_size, "-genv SLIP_ID host:port");
  const std::string starter = starter_of("PMI_RANK");
  if (starter.empty())
    fail(
        "the process of mpiexec is not visible here, and its variables name no job: set SLIP_ID, for example to "
        "unix:NAME with any name (mpiexec -genv SLIP_ID unix:NAME ...)");
  info->id = id_on_this_host("mpiexec " + starter);
  return info;
}

// A PMIx server without the variables of mpirun or srun gives the rank, but neither the number of ranks nor an address.
// The same is true of Kubernetes.
[[noreturn]] void refuse_rank_alone(const Reader& read, const char* rank) {
  fail(
      fmt::format("{}={} is set, and no variable gives the number of ranks: set SLIP_NRANKS to it, and SLIP_ID to a "
                  "host:port where rank 0 can listen",
                  rank, read.text(rank)));
}

std::optional<LaunchInfo> by_srun(const Reader& read) {
  if (!read.has("SLURM_STEP_ID"))
    return std::nullopt;  // a batch script has the other variables, but is not a task of a step
  const char* const count = read.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const std::string job = fmt::format("srun {}.{}", read.text("SLURM_JOB_ID"), read.text("SLURM_STEP_ID"));
  std::optional<LaunchInfo> info = read.ranks("srun", "SLURM_PROCID", count, "SLURM_LOCALID", job);
  if (!info || info->id.valid()) return info;
  if (!read.has("SLURM_JOB_ID")) fail("SLURM_STEP_ID is set and SLURM_JOB_ID is not: set SLIP_ID=host:port");
  const char* const nodes = read.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  if (read.has(nodes) && read.number(nodes, 1, 1 << 20) == 1) {
    info->id = id_on_this_host(job);
    return info;
  }
  // Task 0 is on the first host of the step.
  const char* const list = read.has("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
  std::string host = first_host(read.text(list));
  if (host.empty()) host = read.text("SLURM_LAUNCH_NODE_IPADDR");
  if (host.empty())
    fail(
        "srun gave neither SLURM_STEP_NODELIST nor SLURM_LAUNCH_NODE_IPADDR: set SLIP_ID=host:port, where rank 0 can "
        "listen");
  info->id = UniqueId::parse(host_port(host, kFirstPort + number_of(job) % kPorts), job, {});
  return info;
}

}  // namespace

std::optional<LaunchInfo> read_launch_info(const Variables& variables) {
  const Reader read(variables);
  if (std::optional<LaunchInfo> info = by_hand(read)) return info;
  std::optional<LaunchInfo> torch = by_torchrun(read), mpi = by_mpirun(read);
  const bool open_mpi = mpi.has_value();
  if (!mpi) mpi = by_mpiexec(read);
  if (torch && mpi && (torch->rank != mpi->rank || torch->nranks != mpi->nranks))
    fail(
        fmt::format("RANK={} of WORLD_SIZE={} and {}={} of {}={} contradict each other: set SLIP_RANK, SLIP_NRANKS and "
                    "SLIP_ID, or unset one pair",
                    torch->rank, torch->nranks, open_mpi ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK", mpi->rank,
                    open_mpi ? "OMPI_COMM_WORLD_SIZE" : "PMI_SIZE", mpi->nranks));
  if (torch) return torch;
  if (mpi) return mpi;
  // Last: a process that mpirun starts inside a Slurm job has the variables of both.
  std::optional<LaunchInfo> slurm = by_srun(read);
  if (!slurm && read.has("PMIX_RANK") && read.has("PMIX_NAMESPACE")) refuse_rank_alone(read, "PMIX_RANK");
  // Pods of other Jobs have an index, too; with an address this one wants ranks.
  if (!slurm && read.has("JOB_COMPLETION_INDEX") && read.has("SLIP_ID"))
    refuse_rank_alone(read, "JOB_COMPLETION_INDEX");
  return slurm;
}

std::optional<LaunchInfo> launch_info() {
  return read_launch_info([](const char* name) { return base::env_text(name); });
}

std::string first_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t number_end = list.find_first_of("-,]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (number_end == std::string::npos || close == std::string::npos) return {};
  std::string rest = list.substr(close + 1);  // a name may continue after the bracket: "rack[1-2]-node[3-4]"
  rest = rest.starts_with(',') ? std::string() : first_host(rest);
  return list.substr(0, bracket) + list.substr(bracket + 1, number_end - bracket - 1) + rest;
}

}  // namespace slip::transport
