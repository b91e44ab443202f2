#include "transport/job/local_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "slip/unique_id.hpp"
#include "transport/bootstrap/rendezvous.hpp"
#include "transport/job/job_guard.hpp"

namespace slip::transport {
namespace {

constexpr std::size_t kMaxLine = std::size_t{64} << 10;  // longer lines are split, to limit the memory

// LineRelay: copies a pipe to a descriptor line by line and adds a prefix to each line. So the lines of different
// processes do not mix.
class LineRelay {
 public:
  // `from` must be non-blocking.
  LineRelay(OwnedDescriptor from, int to, std::string prefix)
      : from_(std::move(from)), to_(to), prefix_(std::move(prefix)) {}

  // Copies the bytes that have arrived; closes at the end of the pipe.
  void pump() {
    char bytes[16 << 10];
    while (descriptor() >= 0) {
      const ssize_t count = ::read(descriptor(), bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;  // no bytes have arrived
      if (count == 0) return close();
      pending_.append(bytes, static_cast<std::size_t>(count));
      for (std::size_t end = 0; (end = pending_.find('\n')) != std::string::npos;) put(end + 1, true);
      if (pending_.size() > kMaxLine) put(pending_.size(), false);
    }
  }
  // Copies the bytes that have arrived, including an unfinished line, and closes.
  void finish() {
    pump();
    close();
  }
  int descriptor() const { return from_.number(); }

 private:
  void close() {
    from_.reset();
    if (!pending_.empty()) put(pending_.size(), false);
  }
  void put(std::size_t bytes, bool whole) {
    const std::string line = prefix_ + pending_.substr(0, bytes) + (whole ? "" : "\n");
    pending_.erase(0, bytes);
    for (std::string_view text = line; !text.empty();) {
      const ssize_t count = ::write(to_, text.data(), text.size());
      if (count < 0 && errno != EINTR) return;  // no process reads it any more
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  OwnedDescriptor from_;
  int to_;
  std::string prefix_, pending_;
};

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  result.reserve(words.size() + 1);
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

// Everything that a child needs between fork and exec, where it must not allocate.
struct ChildSetup {
  std::vector<char*> arguments, environment;
  int out = -1, err = -1;  // -1: inherits this process's
  int nothing = -1;        // /dev/null
  int failure = -1;        // write end of a pipe: the child sends the errno if exec fails
  pid_t parent = 0;
  sigset_t mask{};
};

[[noreturn]] void become(const ChildSetup& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(kCannotStart);  // the parent was killed before prctl()
  ::dup2(plan.nothing, STDIN_FILENO);
  if (plan.out >= 0) ::dup2(plan.out, STDOUT_FILENO);
  if (plan.err >= 0) ::dup2(plan.err, STDERR_FILENO);
  ::sigprocmask(SIG_SETMASK, &plan.mask, nullptr);
  ::execvpe(plan.arguments[0], plan.arguments.data(), plan.environment.data());
  const int error = errno;
  static_cast<void>(!::write(plan.failure, &error, sizeof(error)));
  ::_exit(kNoSuchProgram);
}

// The signals that this process handles while the job runs, read from a signalfd.
class Signals : base::NoCopy {
 public:
  Signals() {
    sigset_t wanted;
    sigemptyset(&wanted);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP}) {
      if (number == SIGCHLD || !ignored(number)) sigaddset(&wanted, number);
    }
    ::sigprocmask(SIG_BLOCK, &wanted, &before_);
    descriptor_ = ::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (descriptor_ < 0) base::fail(Code::kIo, {}, "cannot take signals: {}", std::strerror(errno));
  }
  ~Signals() {
    ::close(descriptor_);
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }

  int next() const {  // 0: no signal is pending
    signalfd_siginfo info{};
    return ::read(descriptor_, &info, sizeof(info)) == sizeof(info) ? static_cast<int>(info.ssi_signo) : 0;
  }
  int descriptor() const { return descriptor_; }
  const sigset_t& before() const { return before_; }

 private:
  // This process does not take signals that it ignores, as under nohup or in the background of a shell. If they were
  // blocked, the signalfd would report them although they are ignored. The ranks inherit the ignoring, so they would
  // not end on such a signal and would have to be killed.
  static bool ignored(int number) {
    struct sigaction action {};
    return ::sigaction(number, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }

  sigset_t before_{};
  int descriptor_ = -1;
};

class Job : base::NoCopy {
 public:
  explicit Job(const LocalJob& job) : job_(job), nothing_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
    id_ = UniqueIdParts{"unix:slip-launch-" + random_name(), 0, random_secret(), true}.id().text();
    guard_.emplace(marker_);
  }
  ~Job() {  // also runs if only some ranks could be started
    for (Rank& rank : ranks_) {
      if (!rank.running) continue;
      ::kill(-rank.pid, SIGKILL);
      guard_->remove(rank.pid);
      ::waitpid(rank.pid, nullptr, 0);
    }
  }

  int run() {
    if (job_.timeout.count() > 0) timeout_at_ = base::deadline_after(std::chrono::nanoseconds(job_.timeout).count());
    for (int rank = 0; rank < job_.nranks && status_ == 0; ++rank) start(rank);
    if (status_ != 0) end_all(SIGKILL);
    while (running() > 0) {
      wait();
      for_each_relay(&LineRelay::pump);
      while (const int number = signals_.next()) take(number);
      reap();
      check_time();
    }
    for_each_relay(&LineRelay::finish);
    return status_ != 0 || interrupted_ == 0 ? status_ : kOfSignal + interrupted_;
  }

 private:
  struct Rank {
    pid_t pid = -1;
    bool running = false;
    std::vector<LineRelay> relays;
  };

  std::vector<std::string> environment(int rank) const {
    std::map<std::string, std::string> changes{{"SLIP_RANK", std::to_string(rank)},
                                               {"SLIP_NRANKS", std::to_string(job_.nranks)},
                                               {"SLIP_LOCAL_RANK", std::to_string(rank)},
                                               {"SLIP_ID", id_}};
    for (const auto& [name, value] : job_.changes) changes[name] = value;
    // The guard finds the processes of the job by this marker. If a rank of another job starts this job, its ranks get
    // both markers.
    const std::string outer = base::env_text(kMarkerName);
    changes[kMarkerName] = outer.empty() ? marker_ : outer + ":" + marker_;
    return base::env_with(changes);
  }

  void start(int number) {
    const std::vector<std::string> variables = environment(number);
    ChildSetup plan;
    plan.arguments = pointers(job_.command);
    plan.environment = pointers(variables);
    plan.nothing = nothing_.number();
    plan.parent = ::getpid();
    plan.mask = signals_.before();
    Rank rank;
    OwnedDescriptor out, err;
    if (job_.tag_output) {
      plan.out = (out = relay(rank, number, STDOUT_FILENO)).number();
      plan.err = (err = relay(rank, number, STDERR_FILENO)).number();
    }
    Pipe failure = make_pipe();
    plan.failure = failure.write.number();
    rank.pid = ::fork();
    if (rank.pid == 0) become(plan);
    if (rank.pid < 0) base::fail(Code::kIo, {}, "cannot start rank {}: {}", number, std::strerror(errno));
    failure.write.reset();          // only the child has it now
    ::setpgid(rank.pid, rank.pid);  // parent and child both do it: either may be first
    guard_->add(rank.pid);
    rank.running = true;
    ranks_.push_back(std::move(rank));
    int error = 0;
    // If exec succeeds, it closes the pipe, and read() returns 0.
    if (::read(failure.read.number(), &error, sizeof(error)) != sizeof(error)) return;
    status_ = error == ENOENT ? kNoSuchProgram : kCannotStart;
    base::log_line(fmt::format("cannot run '{}': {}", job_.command.front(), std::strerror(error)));
  }

  static OwnedDescriptor relay(Rank& rank, int number, int to) {
    Pipe pipe = make_pipe();
    ::fcntl(pipe.read.number(), F_SETFL, O_NONBLOCK);
    rank.relays.emplace_back(std::move(pipe.read), to, fmt::format("[{}] ", number));
    return std::move(pipe.write);
  }

  void for_each_relay(void (LineRelay::*function)()) {
    for (Rank& rank : ranks_) {
      for (LineRelay& relay : rank.relays) (relay.*function)();
    }
  }

  std::ptrdiff_t running() const {
    return std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.running; });
  }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    for (const Rank& rank : ranks_) {
      for (const LineRelay& one : rank.relays) watched.push_back({one.descriptor(), POLLIN, 0});
    }
    std::int64_t until = timeout_at_;
    if (kill_at_ != 0) until = until == 0 ? kill_at_ : std::min(until, kill_at_);
    poll_until(watched, until);
  }

  void signal_all(int number) const {
    for (const Rank& rank : ranks_) {
      if (rank.running) ::kill(-rank.pid, number);
    }
  }

  // Sends the signal to all ranks, and sets the time to kill them.
  void end_all(int number) {
    signal_all(number);
    signal_all(SIGCONT);  // otherwise a stopped process would not handle the signal
    if (kill_at_ == 0) kill_at_ = base::deadline_after(std::chrono::nanoseconds(job_.grace).count());
  }

  void take(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) {
      signal_all(SIGSTOP);
      ::raise(SIGSTOP);
      signal_all(SIGCONT);
      return;
    }
    end_all(interrupted_ == 0 ? number : SIGKILL);  // a second signal kills at once
    interrupted_ = number;
  }

  void reap() {
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      Rank& rank = ranks_[i];
      siginfo_t info{};
      if (!rank.running || ::waitid(P_PID, static_cast<id_t>(rank.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid != rank.pid)
        continue;
      const bool exited = info.si_code == CLD_EXITED;
      const int status = exited ? info.si_status : kOfSignal + info.si_status;
      if (status != 0 && status_ == 0) first_failure(i, info.si_status, exited);
      // Kills the processes that the rank left behind. The kernel does not reuse the group id before the rank is
      // reaped.
      if (kill_at_ != 0) ::kill(-rank.pid, SIGKILL);
      guard_->remove(rank.pid);
      ::waitpid(rank.pid, nullptr, 0);
      rank.running = false;
    }
  }

  void first_failure(std::size_t rank, int value, bool exited) {
    status_ = exited ? value : kOfSignal + value;
    const std::ptrdiff_t others = running() - 1;
    std::string text = exited ? fmt::format("rank {} failed with status {}", rank, value)
                              : fmt::format("rank {} died of signal {} ({})", rank, value, ::strsignal(value));
    if (interrupted_ == 0 && others > 0) text += fmt::format("; ending the other {}", others);
    if (interrupted_ == 0) base::log_line(text);
    end_all(SIGTERM);
  }

  void check_time() {
    const std::int64_t now = base::now_ns();
    if (timeout_at_ != 0 && now >= timeout_at_) {
      timeout_at_ = 0;
      base::log_line(fmt::format("{} still running after {:g} s; ending the job", rank_list(still_running()),
                                 static_cast<double>(job_.timeout.count()) / 1000));
      if (status_ == 0) status_ = kJobTimedOut;
      end_all(SIGTERM);
    }
    if (kill_at_ == 0 || now < kill_at_ || running() == 0) return;
    base::log_line(fmt::format("{} did not end when asked to; killing", rank_list(still_running())));
    signal_all(SIGKILL);
    kill_at_ = now + 1'000'000'000;
  }

  std::vector<int> still_running() const {
    std::vector<int> result;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].running) result.push_back(static_cast<int>(i));
    }
    return result;
  }

  static constexpr const char* kMarkerName = "SLIP_JOB";

  const LocalJob& job_;
  const OwnedDescriptor nothing_;
  const Signals signals_;
  const std::string marker_ = random_name();
  std::string id_;
  std::optional<JobGuard> guard_;  // destroyed after ~Job() has ended the ranks
  std::vector<Rank> ranks_;
  std::int64_t timeout_at_ = 0, kill_at_ = 0;  // 0: never
  int status_ = 0, interrupted_ = 0;
};

}  // namespace

int run_local_job(const LocalJob& job) { return Job(job).run(); }

}  // namespace slip::transport
