#include "transport/job/rank_processes.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "transport/bootstrap/secret.hpp"

namespace slip::transport {
namespace {

constexpr const char* kMarkerName = "SLIP_JOB";
constexpr std::int64_t kKillAgainNs = 1'000'000'000;

}  // namespace

int start_failure_status(int error) { return error == ENOENT ? kNoSuchProgram : kCannotStart; }

std::string RankExit::text() const {
  if (exited) return fmt::format("failed with status {}", value);
  return fmt::format("died of signal {} ({})", value, ::strsignal(value));
}

EnvChanges rank_variables(int rank, int nranks, int local_rank, const std::string& id, const EnvChanges& changes) {
  EnvChanges result{{"SLIP_RANK", std::to_string(rank)},
                    {"SLIP_NRANKS", std::to_string(nranks)},
                    {"SLIP_LOCAL_RANK", std::to_string(local_rank)},
                    {"SLIP_ID", id}};
  for (const auto& [name, value] : changes) result[name] = value;
  return result;
}

RankProcesses::RankProcesses(std::chrono::milliseconds grace, const sigset_t& mask)
    : grace_(grace), mask_(mask), marker_(random_name()), guard_(marker_) {}

RankProcesses::~RankProcesses() {
  for (const Process& process : processes_) {
    if (!process.running) continue;
    ::kill(-process.pid, SIGKILL);
    guard_.remove(process.pid);
    ::waitpid(process.pid, nullptr, 0);
  }
}

int RankProcesses::start(int rank, EnvChanges variables, ChildProgram program) {
  // The guard finds the processes of the job by this marker. If a rank of another job starts this job, its ranks get
  // both markers.
  const std::string outer = base::env_text(kMarkerName);
  variables[kMarkerName] = outer.empty() ? marker_ : outer + ":" + marker_;
  program.environment = base::env_with(variables);
  program.mask = mask_;
  program.guard = &guard_;
  const StartedChild child = start_child(program, fmt::format("rank {}", rank));
  // The pid is not reused meanwhile, because only reap() and the destructor reap the process.
  processes_.push_back(
      {rank, child.pid, true, OwnedDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)))});
  return child.error;
}

void RankProcesses::signal_all(int number) const {
  for (const Process& process : processes_) {
    if (process.running) ::kill(-process.pid, number);
  }
}

void RankProcesses::pause() {
  signal_all(SIGSTOP);
  if (paused_at_ns_ == 0) paused_at_ns_ = base::now_ns();
}

void RankProcesses::resume() {
  if (kill_at_ns_ != 0 && paused_at_ns_ != 0) kill_at_ns_ += base::now_ns() - paused_at_ns_;
  paused_at_ns_ = 0;
  signal_all(SIGCONT);
}

void RankProcesses::end_all(int number) {
  signal_all(number);
  signal_all(SIGCONT);  // otherwise a stopped process would not handle the signal
  if (kill_at_ns_ == 0) kill_at_ns_ = base::deadline_after(std::chrono::nanoseconds(grace_).count());
}

std::vector<int> RankProcesses::kill_late() {
  const std::int64_t now = base::now_ns();
  if (kill_at_ns_ == 0 || now < kill_at_ns_ || !any_running()) return {};
  signal_all(SIGKILL);
  kill_at_ns_ = now + kKillAgainNs;
  return running();
}

void RankProcesses::watch(std::vector<pollfd>& watched) const {
  for (const Process& process : processes_) {
    if (process.running && process.ended.number() >= 0) watched.push_back({process.ended.number(), POLLIN, 0});
  }
}

void RankProcesses::reap(const std::function<void(const RankExit&)>& handle) {
  for (Process& process : processes_) {
    siginfo_t info{};
    if (!process.running || ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid != process.pid)
      continue;
    handle({process.rank, info.si_status, info.si_code == CLD_EXITED});
    // Kills the processes that the rank left behind. The kernel does not reuse the group id before the rank is reaped.
    if (kill_at_ns_ != 0) ::kill(-process.pid, SIGKILL);
    guard_.remove(process.pid);
    ::waitpid(process.pid, nullptr, 0);
    process.running = false;
    process.ended.reset();
  }
}

std::vector<int> RankProcesses::running() const {
  std::vector<int> result;
  for (const Process& process : processes_) {
    if (process.running) result.push_back(process.rank);
  }
  return result;
}

bool RankProcesses::any_running() const {
  return std::ranges::any_of(processes_, [](const Process& process) { return process.running; });
}

void RankProcesses::leave_to_guard() {
  guard_.release();
  processes_.clear();
}

}  // namespace slip::transport
