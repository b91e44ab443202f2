// JobGuard: ends the processes of a local job when the process that started it is killed. The system's own means
// (PR_SET_PDEATHSIG) reaches direct children only, and a rank is often a grandchild, behind a shell.
//
// The guard is a process of its own, which holds the read end of a pipe and is ended before the pipe when the job is
// over. If the pipe ends, the starting process is gone; the guard then kills the process group of each rank that still
// ran, and every process of this user whose environment has the job's marker, whichever group or session it has moved
// to.
#pragma once

#include <sys/types.h>

#include <string>

namespace slip {

class JobGuard {
 public:
  // `marker`: a random text that the environment of the job's ranks has, and nothing else. Throws kIo.
  explicit JobGuard(const std::string& marker);
  ~JobGuard();  // the job is over: nothing is killed
  JobGuard(const JobGuard&) = delete;
  JobGuard& operator=(const JobGuard&) = delete;

  // Process groups to kill. A group is removed before its leader is reaped: its number may then be given to others.
  void add(pid_t group) const { send(group); }
  void remove(pid_t group) const { send(-group); }

 private:
  void send(pid_t message) const;

  int pipe_ = -1;
  pid_t guard_ = -1;
};

}  // namespace slip
