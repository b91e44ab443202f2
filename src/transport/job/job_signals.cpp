#include "transport/job/job_signals.hpp"

#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/fail.hpp"

namespace slip::transport {
namespace {

// Signals that this process ignores (under nohup, or in the background of a shell) are not read from the signalfd. If
// they were blocked, the signalfd would report them although they are ignored. The ranks ignore them, too, so they
// would not end on such a signal and would have to be killed.
bool ignored(int number) {
  struct sigaction action {};
  return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

JobSignals::JobSignals() {
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) {
    if (number == SIGCHLD || !ignored(number)) sigaddset(&wanted, number);
  }
  ::sigprocmask(SIG_BLOCK, &wanted, &before_);
  descriptor_.reset(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (descriptor() < 0) base::fail(Code::kIo, {}, "cannot make a signalfd: {}", std::strerror(errno));
}

JobSignals::~JobSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

int JobSignals::next() const {
  signalfd_siginfo info{};
  return ::read(descriptor(), &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace slip::transport
