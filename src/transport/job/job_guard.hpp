// JobGuard: kills the processes of a local job if the process that started it is killed. PR_SET_PDEATHSIG reaches
// direct children only, and a rank is often a grandchild that a shell has started.
//
// The guard is a process that reads from a pipe, whose write end the starting process holds. When the job is over, the
// starting process ends the guard before it closes the pipe. If the pipe closes first, the starting process is gone.
// The guard then kills the process group of each running rank. It also kills every process of this user whose
// environment has the job's marker, even in another process group or session.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/sync.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

struct Pipe {
  OwnedDescriptor read, write;
};
Pipe make_pipe();  // both ends are closed at exec; throws kIo

class JobGuard : base::NoCopy {
 public:
  // `marker`: a random text in the environment of the job's ranks, and nowhere else. Throws kIo.
  explicit JobGuard(const std::string& marker);
  ~JobGuard();  // the job is over: ends the guard without killing a rank
  // Closes the pipe instead: the guard kills the processes of the job now, and this object does nothing any more.
  void release();

  // Adds or removes a process group to kill. Remove a group before its leader is reaped: the kernel may reuse the id
  // afterwards.
  void add(pid_t group) const { send(group); }
  void remove(pid_t group) const { send(-group); }

 private:
  void send(pid_t message) const;

  OwnedDescriptor pipe_;  // the write end
  pid_t guard_ = -1;
};

}  // namespace slip::transport
