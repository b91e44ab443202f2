#include "transport/job/job_guard.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/fail.hpp"

namespace slip::transport {
namespace {

constexpr int kMaxRanks = 4096;  // process groups that the guard stores; it finds further ranks by the job's marker
// A process may fork just before it is killed, so the guard repeats the search until it finds no process. The searches
// take at most 10 s in all.
constexpr int kMaxSearches = 1000, kPauseMs = 10;

// The code of the guard process. It runs in a forked child, perhaps of a program with threads. So it allocates nothing
// and calls only async-signal-safe functions.
class GuardProcess {
 public:
  GuardProcess(int pipe, std::string_view marker) : pipe_(pipe), marker_(marker) {}

  [[noreturn]] void run() {
    for (pid_t message = 0;;) {
      const ssize_t got = ::read(pipe_, &message, sizeof(message));
      if (got < 0 && errno == EINTR) continue;
      if (got != sizeof(message)) break;  // end of the pipe: the starting process is gone
      if (message < 0) remove(-message);
      else if (count_ < kMaxRanks) groups_[static_cast<std::size_t>(count_++)] = message;
    }
    for (int i = 0; i < count_; ++i) ::kill(-groups_[static_cast<std::size_t>(i)], SIGKILL);
    for (int search = 0; search < kMaxSearches && kill_marked(); ++search) ::poll(nullptr, 0, kPauseMs);
    ::_exit(0);
  }

 private:
  void remove(pid_t group) {
    pid_t* const end = groups_.data() + count_;
    pid_t* const found = std::find(groups_.data(), end, group);
    if (found == end) return;
    *found = groups_[static_cast<std::size_t>(--count_)];
  }

  // True: at least one process of the job was found.
  bool kill_marked() {
    const int folder = ::open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    bool any = false;
    for (;;) {
      const auto got = ::syscall(SYS_getdents64, folder, names_.data(), names_.size());
      if (got <= 0) break;
      for (std::size_t at = 0; at < static_cast<std::size_t>(got);) {
        const auto* const entry = reinterpret_cast<const struct dirent64*>(names_.data() + at);
        at += entry->d_reclen;
        const pid_t pid = number_of(entry->d_name);
        if (pid > 0 && pid != ::getpid() && kill_if_marked(pid)) any = true;
      }
    }
    ::close(folder);
    return any;
  }

  static pid_t number_of(const char* name) {
    pid_t number = 0;
    for (; *name >= '0' && *name <= '9' && number < 100'000'000; ++name) number = number * 10 + (*name - '0');
    return *name == '\0' ? number : 0;
  }

  // Uses a pidfd: after the environment has been read, the pid may already belong to another process.
  bool kill_if_marked(pid_t pid) {
    const auto process = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (process < 0) return false;
    const bool marked = is_marked(pid);
    if (marked) ::syscall(SYS_pidfd_send_signal, process, SIGKILL, nullptr, 0);
    ::close(process);
    return marked;
  }

  bool is_marked(pid_t pid) {
    std::array<char, 32> path{};
    char* end = fmt::format_to_n(path.data(), path.size() - 1, "/proc/{}/environ", pid).out;
    *end = '\0';
    const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    bool found = false;
    std::size_t kept = 0;  // bytes kept from the previous read: the marker may span two reads
    while (!found) {
      const ssize_t got = ::read(file, text_.data() + kMaxKept, kPiece);
      if (got <= 0) break;
      const std::string_view text(text_.data() + kMaxKept - kept, kept + static_cast<std::size_t>(got));
      found = text.find(marker_) != std::string_view::npos;
      kept = std::min({text.size(), marker_.size() - 1, kMaxKept});
      std::memmove(text_.data() + kMaxKept - kept, text.data() + text.size() - kept, kept);
    }
    ::close(file);
    return found;
  }

  const int pipe_;
  const std::string_view marker_;
  std::array<pid_t, kMaxRanks> groups_;
  int count_ = 0;
  alignas(struct dirent64) std::array<char, 16 << 10> names_;
  static constexpr std::size_t kMaxKept = 64, kPiece = 16 << 10;  // the marker is shorter than kMaxKept
  std::array<char, kMaxKept + kPiece> text_;
};

// Leaves the terminal's session and closes the files of the starting process. Otherwise a reader of that process's
// output would wait until the guard ends, too.
[[noreturn]] void guard(int pipe, std::string_view marker) {
  ::setsid();
  ::prctl(PR_SET_NAME, "slip-job-guard");
  // First the pipe: if the starting process has closed its standard input, the pipe may be descriptor 0. /dev/null
  // there would look like the end of the pipe, and the guard would kill the job.
  constexpr int kPipe = 3;
  ::dup2(pipe, kPipe);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, number);
  ::syscall(SYS_close_range, kPipe + 1, ~0U, 0);
  static GuardProcess process(kPipe, marker);  // static: too large for some stacks
  process.run();
}

}  // namespace

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) base::fail_errno("cannot make a pipe", errno);
  return {OwnedDescriptor(ends[0]), OwnedDescriptor(ends[1])};
}

JobGuard::JobGuard(const std::string& marker) {
  Pipe pipe = make_pipe();
  // All signals stay blocked in the guard: only the end of the pipe makes it act and exit.
  sigset_t all, before;
  sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);
  guard_ = ::fork();
  if (guard_ == 0) {
    pipe.write.reset();  // otherwise the guard itself would keep the pipe open
    guard(pipe.read.number(), marker);
  }
  const int error = errno;
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  if (guard_ < 0)
    base::fail(ErrorCode::kIo, {}, "cannot start the process that guards the job: {}", std::strerror(error));
  pipe_ = std::move(pipe.write);
}

// The guard is killed while the pipe is still open, so it kills no process. SIGKILL ends even a stopped guard.
JobGuard::~JobGuard() {
  if (guard_ < 0) return;
  ::kill(guard_, SIGKILL);
  while (::waitpid(guard_, nullptr, 0) < 0 && errno == EINTR) {}
}

void JobGuard::release() {
  pipe_.reset();
  guard_ = -1;
}

// If the guard was killed, the job continues without it.
void JobGuard::send(pid_t message) const {
  sigset_t broken, before, pending;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &broken, &before);
  const ssize_t sent = ::write(pipe_.number(), &message, sizeof(message));
  if (sent < 0 && errno == EPIPE && ::sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE)) {
    const timespec none{};
    ::sigtimedwait(&broken, nullptr, &none);
  }
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace slip::transport
