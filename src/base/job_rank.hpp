// The rank of this process in a launched job, from the variables of its launcher. Never fails: for file names and
// traces, where a wrong variable must not stop the program. Joining a job reads the same variables strictly
// (transport/launch_info).
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace slip {

struct JobRank {
  int rank = 0, ranks = 1;
};

// `variables` gives the value of one, "" if it is not set. None: the process is no rank of a job.
std::optional<JobRank> read_job_rank(const std::function<std::string(const char*)>& variables);
std::optional<JobRank> job_rank();  // of this process's environment

}  // namespace slip
