// LocalJob: runs the ranks of a job on this host, for `slip launch`. Each rank is a process with the variables of
// launch_info.hpp. All ranks end together: if one fails, the others are ended. A signal to this process is passed on to
// all ranks. If this process is killed, the kernel and a JobGuard kill the ranks and their child processes. Each rank
// leads a process group, so that its children end with it; no other process is ever signalled.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace slip::transport {

struct LocalJob {
  std::vector<std::string> command;            // the program, searched in PATH, and its arguments
  std::map<std::string, std::string> changes;  // environment variables to set
  int nranks = 1;
  std::chrono::milliseconds timeout{0};   // the job is ended after this time; 0: no limit
  std::chrono::milliseconds grace{5000};  // between asking a rank to end and killing it
  bool tag_output = false;                // each line begins with "[rank] "
};

inline constexpr int kJobTimedOut = 124, kCannotStart = 126, kNoSuchProgram = 127, kOfSignal = 128;

// Runs the job to its end. Returns 0, the status of the first rank that failed (128 + signal if a signal killed it), or
// one of the above. Call it from the program's main thread: it handles the program's signals meanwhile.
int run_local_job(const LocalJob& job);

}  // namespace slip::transport
