#include "transport/job/host_connection.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/host_list.hpp"
#include "transport/job/job_guard.hpp"
#include "transport/job/rank_processes.hpp"

namespace slip::transport {
namespace {

constexpr std::size_t kMaxErrors = 8192;             // kept bytes of the standard error
constexpr std::int64_t kEndLimitNs = 1'000'000'000;  // after the end of its output, the shell must exit in this time

std::string own_program() {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    base::fail(ErrorCode::kIo, {}, "cannot read /proc/self/exe, the path of this program: {}", error.message());
  return own.string();
}

// A socket pair for the shell's standard input and output.
std::pair<OwnedDescriptor, OwnedDescriptor> make_sockets() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    base::fail_errno("cannot make a socket pair", errno);
  return {OwnedDescriptor(ends[0]), OwnedDescriptor(ends[1])};
}

}  // namespace

HostConnection::HostConnection(const std::string& host, const RemoteShell& shell, const std::string& program)
    : host_(host), shell_(shell), local_(is_this_host(host)) {
  if (!program.empty() && !local_) programs_ = {program};
  else programs_ = {own_program(), "slip"};
}

HostConnection::~HostConnection() { give_up(); }

void HostConnection::connect(const sigset_t& mask) {
  program_ = programs_.front();
  programs_.erase(programs_.begin());
  auto [mine, theirs] = make_sockets();
  Pipe errors = make_pipe();
  ::fcntl(errors.read.number(), F_SETFL, O_NONBLOCK);
  ChildProgram program{.environment = base::env_with({}),
                       .in = theirs.number(),
                       .out = theirs.number(),
                       .err = errors.write.number(),
                       .mask = mask};
  if (local_) program.command = {program_, "agent"};
  else program.command = shell_.agent_command(host_, program_);
  const StartedChild child = start_child(program, local_ ? "the agent" : shell_.name());
  pid_ = child.pid;
  status_.reset();
  closed_at_ns_ = 0;
  drained_ = false;
  channel_.emplace(AgentChannel::Side::kLauncher, std::move(mine), OwnedDescriptor());
  errors_ = std::move(errors.read);
  errors_text_.clear();
  if (child.error != 0)
    base::fail(ErrorCode::kIo, {},
               "cannot run '{}': {}; install it (Debian: openssh-client), or give another one: --ssh",
               program.command.front(), std::strerror(child.error));
}

bool HostConnection::can_try_again() const {
  return ended() && !local_ && *status_ == kNoSuchProgram && !programs_.empty();
}

void HostConnection::watch(std::vector<pollfd>& watched, bool frames) const {
  if (!channel_) return;
  short events = 0;
  if (frames && !channel_->ended()) events |= POLLIN;
  if (has_unsent() && !channel_->ended()) events |= POLLOUT;
  if (events != 0) watched.push_back({channel_->in(), events, 0});
  if (errors_.number() >= 0) watched.push_back({errors_.number(), POLLIN, 0});
}

void HostConnection::read(bool frames) {
  if (!channel_) return;
  reap();
  read_errors();
  if (!frames) return;
  drained_ = !channel_->pump() && status_.has_value();
  if (!channel_->ended() || status_) return;
  const std::int64_t now = base::now_ns();
  if (closed_at_ns_ == 0) closed_at_ns_ = now;
  else if (now >= kill_at_ns()) give_up();
}

std::int64_t HostConnection::kill_at_ns() const {
  return closed_at_ns_ == 0 || status_ ? 0 : closed_at_ns_ + kEndLimitNs;
}

std::optional<AgentFrame> HostConnection::next() { return channel_ ? channel_->next() : std::nullopt; }

void HostConnection::read_errors() {
  char bytes[4096];
  while (errors_.number() >= 0) {
    const ssize_t count = ::read(errors_.number(), bytes, sizeof(bytes));
    if (count < 0 && errno == EINTR) continue;
    if (count == 0) errors_.reset();
    if (count <= 0) return;
    errors_text_.append(bytes, static_cast<std::size_t>(count));
    if (errors_text_.size() > kMaxErrors) errors_text_.erase(0, errors_text_.size() - kMaxErrors);
  }
}

void HostConnection::reap() {
  int status = 0;
  if (pid_ < 0 || status_ || ::waitpid(pid_, &status, WNOHANG) != pid_) return;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : kOfSignal + WTERMSIG(status);
}

void HostConnection::give_up() {
  if (pid_ < 0 || status_) return;
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}  // SIGKILL ends it, so this wait is short
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : kOfSignal + WTERMSIG(status);
}

std::string HostConnection::why_ended() const {
  if (local_)
    return fmt::format("the agent on this host ended with status {}: {}", status_.value_or(-1),
                       base::single_line_text(errors_text_));
  // A login shell may write the reason to its standard output instead.
  const std::string output = errors_text_.empty() && channel_ ? channel_->noise() : errors_text_;
  return shell_.explain(host_, program_, status_.value_or(-1), output);
}

}  // namespace slip::transport
