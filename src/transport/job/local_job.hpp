// LocalJob: starts the ranks of a job on this host, each as a process with the variables of launch_info.hpp, and makes
// sure that they end together. If a rank fails, the others are ended. A signal to this process goes to all ranks. If
// this process is killed, the kernel and a JobGuard kill the ranks and what they started. Each rank leads a process
// group, so that its children end with it; no other process is ever signalled.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace slip {

struct LocalJob {
  std::vector<std::string> command;            // the program, searched in PATH, and its arguments
  std::map<std::string, std::string> changes;  // environment variables to set
  int nranks = 1;
  std::chrono::milliseconds timeout{0};   // the job is ended after it; 0: no limit
  std::chrono::milliseconds grace{5000};  // between asking a rank to end and killing it
  bool tag_output = false;                // each line begins with "[rank] "
};

inline constexpr int kJobTimedOut = 124, kCannotStart = 126, kNoSuchProgram = 127, kOfSignal = 128;

// Runs the job to its end. Returns 0, the status of the first rank that failed (128 + signal if a signal killed it), or
// one of the above. Call it from the program's main thread: it takes the program's signals meanwhile.
int run_local_job(const LocalJob& job);

}  // namespace slip
