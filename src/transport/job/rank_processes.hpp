// RankProcesses: the ranks that a launcher has started on this host. They end together: end_all() asks all of them to
// end, and after the grace period kill_late() kills them. Each rank leads a process group, so that its children end
// with it; no other process is ever signalled. If this process is killed, a JobGuard kills the ranks.
//
// One thread uses it. It never waits by itself: the caller polls the descriptors of watch() and a JobSignals, until
// kill_at_ns() at most.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/job_guard.hpp"

namespace slip::transport {

// Exit statuses of a launcher, the same as of timeout(1) and of a shell. After a signal: kOfSignal + its number.
inline constexpr int kJobTimedOut = 124, kCannotStart = 126, kNoSuchProgram = 127, kOfSignal = 128;

int start_failure_status(int error);  // 127 if there is no such program, otherwise 126

// How a rank ended: with an exit status, or by a signal.
struct RankExit {
  int rank = 0;
  int value = 0;  // the exit status or the number of the signal
  bool exited = true;

  int status() const { return exited ? value : kOfSignal + value; }  // as a shell reports it
  std::string text() const;                                          // "failed with status 7"
};

using EnvChanges = std::map<std::string, std::string>;  // variables to set
// The variables by which a rank finds the others, see launch_info.hpp, and the changes.
EnvChanges rank_variables(int rank, int nranks, int local_rank, const std::string& id, const EnvChanges& changes);

class RankProcesses : base::NoCopy {
 public:
  // `mask`: the signals that are blocked in ranks.
  RankProcesses(std::chrono::milliseconds grace, const sigset_t& mask);
  ~RankProcesses();  // kills the ranks that still run

  // Returns the errno if the program cannot be run, otherwise 0. Sets the environment, mask and guard of the program.
  int start(int rank, EnvChanges variables, ChildProgram program);

  void signal_all(int number) const;
  // Stops the ranks until resume(). The time in between does not count for the grace period.
  void pause();
  void resume();
  // Sends the signal to all ranks, and sets the time to kill them.
  void end_all(int number);
  // Kills the ranks that still run when the grace period is over, and returns them.
  std::vector<int> kill_late();
  std::int64_t kill_at_ns() const { return kill_at_ns_; }  // 0: no rank has been asked to end

  // Adds a descriptor for each running rank, which becomes readable when the rank ends. A signalfd for SIGCHLD is not
  // enough: if another thread of this process does not block the signal, that thread may take it, and ignores it.
  void watch(std::vector<pollfd>& watched) const;
  // Calls handle(exit) for each rank that has ended since the last call. During that call, running() still includes the
  // rank.
  void reap(const std::function<void(const RankExit&)>& handle);

  std::vector<int> running() const;
  bool any_running() const;
  // Call it before an exit that does not wait for the ranks: the guard kills them and all processes that they started.
  void leave_to_guard();

 private:
  struct Process {
    int rank = 0;
    pid_t pid = -1;
    bool running = false;
    OwnedDescriptor ended;  // a pidfd; none if the process has no descriptors left
  };

  const std::chrono::milliseconds grace_;
  const sigset_t mask_;
  const std::string marker_;
  JobGuard guard_;  // destroyed after ~RankProcesses() has ended the ranks
  std::vector<Process> processes_;
  std::int64_t kill_at_ns_ = 0;    // 0: never
  std::int64_t paused_at_ns_ = 0;  // 0: the ranks are not paused
};

}  // namespace slip::transport
