#include "transport/job/host_connection.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/terminal.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/job.hpp"
#include "transport/job/rank_processes.hpp"

namespace slip::transport {
namespace {

constexpr std::string_view kHost = "{host}";
constexpr int kSshFailed = 255;                      // exit status of ssh for its own errors
constexpr std::size_t kMaxErrors = 8192;             // kept bytes of the standard error
constexpr std::int64_t kEndLimitNs = 1'000'000'000;  // after the end of its output, the shell must exit in this time

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

std::string replace_host(std::string word, const std::string& host) {
  for (std::size_t at = 0; (at = word.find(kHost, at)) != std::string::npos; at += host.size())
    word.replace(at, kHost.size(), host);
  return word;
}

// Quotes a word for the remote shell: ssh joins its words with blanks and passes them to a shell of the other host.
std::string quoted(const std::string& word) {
  constexpr std::string_view kSafe = "/._-+=:,@%";
  const auto safe = [&](unsigned char c) { return std::isalnum(c) || kSafe.find(static_cast<char>(c)) != kSafe.npos; };
  if (!word.empty() && std::ranges::all_of(word, safe)) return word;
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// The end of the shell's output, as one line.
std::string summary(const std::string& output) {
  constexpr std::size_t kMax = 300;
  std::string text = base::single_line_text(output);
  const auto end = text.find_last_not_of(" \r\n");
  text.resize(end == std::string::npos ? 0 : end + 1);
  return text.size() <= kMax ? text : "..." + text.substr(text.size() - kMax);
}

// A text that ssh writes when it fails, and what to do about it. {0}: the host, {1}: "ssh ... host".
struct SshFailure {
  std::string_view text;
  const char* meaning;
};
constexpr SshFailure kSshFailures[] = {
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     "its host key has changed: another machine may answer under this name. If the host was set up anew, remove the "
     "old key (ssh-keygen -R {0}) and log in once (`{1}`) to check the new one"},
    {"Host key verification failed",
     "its host key is not known here. Log in once (`{1}`) and compare the fingerprint, or add the key that the host's "
     "administrator confirms (ssh-keyscan {0} >> ~/.ssh/known_hosts)"},
    {"Could not resolve hostname", "no name server or /etc/hosts knows this name. Correct it, or give the IP address"},
    {"Permission denied",
     "it accepts no login without a password. Install your key there (ssh-copy-id {0}), or load it (ssh-add); then "
     "`{1} true` must work without a question"},
    {"Too many authentication failures", "it accepts no login without a password. Install your key (ssh-copy-id {0})"},
    {"Connection refused", "nothing listens at its ssh port. Start sshd there, or give the port: --ssh 'ssh -p PORT'"},
    {"timed out", "it does not answer. Is it up, and does a firewall drop port 22? Try `{1} true`"},
    {"No route to host", "it cannot be reached. Is it up and in this network? Try `{1} true`"},
    {"Network is unreachable", "there is no route to its network from here. Try `{1} true`"},
    {"Connection closed by", "it closed the connection before the login. See the log of its sshd; try `{1} true`"},
    {"Connection reset by", "it closed the connection before the login. See the log of its sshd; try `{1} true`"},
};

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

// Of a status that waitpid() returned.
int exit_status(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : kOfSignal + WTERMSIG(status); }

}  // namespace

std::vector<std::string> split_words(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false;  // a word has begun; it may be an empty one in quotes
  char quote = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '\\' && quote != '\'' && i + 1 < line.size()) {
      word += line[++i];
      inside = true;
    } else if (quote != 0) {
      if (c == quote) quote = 0;
      else word += c;
    } else if (c == '\'' || c == '"') {
      quote = c;
      inside = true;
    } else if (c == ' ' || c == '\t' || c == '\n') {
      if (inside) words.push_back(std::exchange(word, {}));
      inside = false;
    } else {
      word += c;
      inside = true;
    }
  }
  if (quote != 0) base::fail(ErrorCode::kInvalidValue, {}, "{}: the quote {} is not closed", line, quote);
  if (inside) words.push_back(word);
  return words;
}

RemoteShell::RemoteShell(std::string_view command, std::chrono::milliseconds connect_timeout)
    : words_(split_words(command)), connect_timeout_(connect_timeout) {
  if (words_.empty())
    base::fail(ErrorCode::kInvalidValue, {}, "the command of the remote shell is empty: give --ssh ssh");
  const std::string& program = words_.front();
  is_ssh_ = program.substr(program.rfind('/') + 1) == "ssh";
}

std::vector<std::string> RemoteShell::agent_command(const std::string& host, const std::string& program) const {
  std::vector<std::string> result;
  bool has_host = false;
  for (const std::string& word : words_) {
    has_host = has_host || contains(word, kHost);
    result.push_back(replace_host(word, host));
  }
  if (is_ssh_) {
    const auto seconds = std::max<std::int64_t>((connect_timeout_.count() + 999) / 1000, 1);
    // -T: the frames are bytes, which a terminal would change. -x: no windows.
    for (const std::string& word : {std::string("-T"), std::string("-x"), std::string("-oBatchMode=yes"),
                                    fmt::format("-oConnectTimeout={}", seconds)})
      result.push_back(word);
  }
  if (!has_host) result.push_back(host);
  result.push_back(is_ssh_ ? quoted(program) : program);
  result.emplace_back("agent");
  return result;
}

std::string RemoteShell::to_try(const std::string& host) const {
  std::string text;
  bool has_host = false;
  for (const std::string& word : words_) {
    has_host = has_host || contains(word, kHost);
    text += (text.empty() ? "" : " ") + quoted(replace_host(word, host));
  }
  return has_host ? text : text + " " + host;
}

std::string RemoteShell::explain(const std::string& host, const std::string& program, int status,
                                 const std::string& output) const {
  const std::string words = output.empty() ? "" : fmt::format(" ({} wrote: {})", name(), summary(output));
  if (is_ssh_ && status == kSshFailed) {
    for (const SshFailure& failure : kSshFailures) {
      if (contains(output, failure.text))
        return fmt::format(fmt::runtime(failure.meaning), without_user(host), to_try(host)) + words;
    }
  }
  if (status == kNoSuchProgram)
    return fmt::format("there is no program '{}'. Install Slipstream there, or give its path: --slip PATH{}", program,
                       words);
  if (status == kCannotStart)
    return fmt::format("'{}' cannot be run there; give another path: --slip PATH{}", program, words);
  if (contains(output, "no command 'agent'"))
    return fmt::format("'{}' is an older Slipstream without `slip agent`: install the same version there{}", program,
                       words);
  return fmt::format("{} ended with status {} before the agent answered; try `{} {} --version`{}", name(), status,
                     to_try(host), program, words);
}

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
  std::vector<OutputPipe> errors;
  const OwnedDescriptor errors_end = OutputPipe::add(errors, 0, STDERR_FILENO);
  ChildProgram program{.environment = base::env_with({}),
                       .in = theirs.number(),
                       .out = theirs.number(),
                       .err = errors_end.number(),
                       .mask = mask};
  if (local_) program.command = {program_, "agent"};
  else program.command = shell_.agent_command(host_, program_);
  const StartedChild child = start_child(program, local_ ? "the agent" : shell_.name());
  pid_ = child.pid;
  status_.reset();
  closed_at_ns_ = 0;
  drained_ = false;
  channel_.emplace(AgentChannel::Side::kLauncher, std::move(mine), OwnedDescriptor());
  errors_ = std::move(errors.front());
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
  if (errors_.from.number() >= 0) watched.push_back({errors_.from.number(), POLLIN, 0});
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
  for (std::string_view piece; !(piece = errors_.read(bytes)).empty();) {
    errors_text_ += piece;
    if (errors_text_.size() > kMaxErrors) errors_text_.erase(0, errors_text_.size() - kMaxErrors);
  }
}

void HostConnection::reap() {
  int status = 0;
  if (pid_ < 0 || status_ || ::waitpid(pid_, &status, WNOHANG) != pid_) return;
  status_ = exit_status(status);
}

void HostConnection::give_up() {
  if (pid_ < 0 || status_) return;
  ::kill(-pid_, SIGKILL);
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {}  // SIGKILL ends it, so this wait is short
  status_ = exit_status(status);
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
