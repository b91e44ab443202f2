#include "busy.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace slip::bench {
namespace {

// Runs in a forked child of a process that has threads, so it makes system calls only.
[[noreturn]] void stay_busy(int core, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);  // the parent ended before prctl() took effect
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof(set), &set);
  for (;;) asm volatile("" ::: "memory");
}

}  // namespace

BusyProcesses::BusyProcesses() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) throw std::runtime_error("cannot read the cores of this process");
  const pid_t self = getpid();
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &set)) continue;
    const pid_t child = fork();
    if (child == 0) stay_busy(core, self);
    if (child < 0) {
      const int error = errno;
      end();
      throw std::runtime_error(fmt::format("cannot start a busy process: {}", std::strerror(error)));
    }
    processes_.push_back(child);
  }
}

BusyProcesses::~BusyProcesses() { end(); }

void BusyProcesses::end() {
  for (const pid_t process : processes_) kill(process, SIGKILL);
  for (const pid_t process : processes_) waitpid(process, nullptr, 0);
  processes_.clear();
}

}  // namespace slip::bench
