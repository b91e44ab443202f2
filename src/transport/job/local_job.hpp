// LocalJob: runs the ranks of a job on this host, for `slip launch`. Each rank is a process with the variables of
// launch_info.hpp. All ranks end together: if one fails, the others are ended. A signal to this process is passed on to
// all ranks. If this process is killed, the kernel and a JobGuard kill the ranks and their child processes.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace slip::transport {

struct LocalJob {
  std::vector<std::string> command;            // the program, searched in PATH, and its arguments
  std::map<std::string, std::string> changes;  // environment variables to set
  std::string directory;                       // where the program runs; empty: the directory of this process
  int nranks = 1;
  std::chrono::milliseconds timeout{0};   // the job is ended after this time; 0: no limit
  std::chrono::milliseconds grace{5000};  // from the signal that asks a rank to end until it is killed
  bool tag_output = false;                // each line begins with "[rank] "
};

// Runs the job to its end. Returns 0, the status of the first rank that failed (128 + signal if a signal killed it), or
// a status of rank_processes.hpp. Call it from the program's main thread: it handles the program's signals meanwhile.
int run_local_job(const LocalJob& job);

}  // namespace slip::transport
