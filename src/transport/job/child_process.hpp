// start_child: starts a rank, an agent or a remote shell as a child process. The child leads a process group, so that a
// Ctrl-C of the terminal reaches only the launcher. If this process is killed, the kernel kills the child.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/sync.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

class JobGuard;

struct ChildProgram {
  // The program and its arguments. A program without '/' is searched in the PATH of `environment`, whose relative
  // entries begin at `directory`.
  std::vector<std::string> command = {};
  std::vector<std::string> environment = {};  // "NAME=value"
  std::string directory = {};                 // the working directory; empty: that of this process
  int in = -1;                                // -1: /dev/null
  int out = -1, err = -1;                     // -1: that of this process
  sigset_t mask{};                            // blocked signals
  // The child adds its process group to the guard before the program runs. If the group were added later, this process
  // could be killed in between, and nothing would kill the processes that the program started.
  const JobGuard* guard = nullptr;
};

struct StartedChild {
  pid_t pid = -1;
  int error = 0;  // errno: the program cannot be run, and the child has ended; 0: it runs
};

// Returns when the program runs or cannot be run. The caller reaps the child in both cases. Throws kIo if the system
// lacks a process or a descriptor for it. `name` is for that error: "rank 3".
StartedChild start_child(const ChildProgram& program, const std::string& name);

// JobSignals: the signals that a launcher handles while its job runs, read from a signalfd. Meanwhile they are blocked
// in this process. Use it in the main thread of a program without other threads.
class JobSignals : base::NoCopy {
 public:
  JobSignals();  // throws kIo
  ~JobSignals();

  int next() const;  // 0: no signal is pending
  int descriptor() const { return descriptor_.number(); }
  const sigset_t& before() const { return before_; }  // the mask for child processes

 private:
  sigset_t before_{};
  OwnedDescriptor descriptor_;
};

}  // namespace slip::transport
