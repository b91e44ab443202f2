// LaunchInfo: the rank of this process, read from the environment variables of its launcher. The launchers are checked
// in this order: `slip launch` or variables set by hand (SLIP_*), torchrun and Kubernetes, Open MPI's mpirun, mpiexec
// of MPICH and others, Slurm's srun.
//
//   by hand     SLIP_RANK, SLIP_NRANKS, SLIP_ID; SLIP_LOCAL_RANK. Without SLIP_RANK, the rank comes from an indexed Job
//               (JOB_COMPLETION_INDEX) or PMIx (PMIX_RANK), which do not give the number of ranks
//   torchrun    RANK, WORLD_SIZE, LOCAL_RANK; rank 0 listens at MASTER_ADDR, at the port next to MASTER_PORT, which
//               torchrun itself uses
//   Kubernetes  a PyTorchJob sets the variables of torchrun. In an indexed Job, JOB_COMPLETION_INDEX replaces RANK
//   mpirun      OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK; on one host rank 0 listens at a name derived from the job's
//   id mpiexec     PMI_RANK, PMI_SIZE, MPI_LOCALRANKID; on one host at a name derived from the launcher's process srun
//   SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, with any --mpi; on one host as with mpirun. On several hosts
//               rank 0 listens on the first host of the step, at a port derived from the job's id
//
// With any launcher, SLIP_ID overrides the address at which rank 0 listens.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "slip/unique_id.hpp"

namespace slip::transport {

struct LaunchInfo {
  int rank = 0, nranks = 1;
  int local_rank = 0;  // index among the ranks of this host
  UniqueId id;
  std::string launcher;  // "slip launch", "torchrun", "Kubernetes", "mpirun", "mpiexec", "srun", "PMIx"
};

using Variables = std::function<std::string(const char* name)>;  // returns "" if the variable is not set

// None: no launcher started this process as a rank. Throws kInvalidValue if variables are missing or contradict each
// other.
std::optional<LaunchInfo> read_launch_info(const Variables& variables);
std::optional<LaunchInfo> launch_info();  // reads this process's environment

// The first name of Slurm's list of hosts: "n3" of "n3,n7", "rack2-08" of "rack2-[08-11,15],x".
std::string first_host(const std::string& list);

}  // namespace slip::transport
