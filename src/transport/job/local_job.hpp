// LocalJob: starts the ranks of a job on this host, each a process with the variables of launch_info.hpp, and sees to
// it that they end together. One that fails ends the others; a signal to this process goes to all; and when this
// process is killed, the system and a JobGuard kill them and what they started. Each rank leads a process group, so
// that what it starts is ended with it; nothing else is ever signalled.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

namespace slip {

struct LocalJob {
  std::vector<std::string> command;            // the program, looked for in PATH, and its arguments
  std::map<std::string, std::string> changes;  // of the environment
  int nranks = 1;
  std::chrono::milliseconds timeout{0};   // then the job is ended; 0: it may take any time
  std::chrono::milliseconds grace{5000};  // between asking a rank to end and killing it
  bool tag_output = false;                // each line begins with "[rank] "
};

inline constexpr int kJobTimedOut = 124, kCannotStart = 126, kNoSuchProgram = 127, kOfSignal = 128;

// Runs it to its end. The status of the first rank that failed, 128 + its signal if it died of one; 0 if none did; or
// one of the above. Call it from a program's main thread: it takes the program's signals meanwhile.
int run_local_job(const LocalJob& job);

}  // namespace slip
