// RemoteShell: the command that runs a program on another host, usually ssh, and explanations of its failures.
//
// HostConnection: the launcher's connection to the agent on one host. It owns the process of the remote shell,
// exchanges frames with the agent, and keeps the shell's error output. One thread uses it. No call waits for the other
// host: connect() waits until the shell runs, and give_up() until the killed shell has ended.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "transport/job/agent_channel.hpp"
#include "transport/job/job_output.hpp"

namespace slip::transport {

// The words of a command line as a shell divides them: quotes and backslashes work, variables and patterns do not.
// Throws kInvalidValue if a quote is not closed.
std::vector<std::string> split_words(std::string_view line);

class RemoteShell {
 public:
  // `command`: as in --ssh, for example "ssh -p 2222" or "kubectl exec -i {host} --". Throws kInvalidValue if it is
  // empty or has an open quote.
  RemoteShell(std::string_view command, std::chrono::milliseconds connect_timeout);

  // The command line that runs `program agent` on the host. The name of the host replaces {host}; if the command has no
  // {host}, the name is appended.
  // For ssh, options are added: never ask for a password, and stop after the timeout. They follow the options of the
  // user, which therefore take precedence.
  std::vector<std::string> agent_command(const std::string& host, const std::string& program) const;

  // Why the agent did not run, and what to try. `status`: exit status of the shell; `output`: its error output.
  std::string explain(const std::string& host, const std::string& program, int status, const std::string& output) const;
  const std::string& name() const { return words_.front(); }

 private:
  std::string to_try(const std::string& host) const;  // the command for an advice to the user: "ssh -p 2222 b"

  std::vector<std::string> words_;
  bool is_ssh_ = false;
  std::chrono::milliseconds connect_timeout_;
};

class HostConnection : base::NoCopy {
 public:
  // `host`: a name, see HostRanks. `program`: the path of slip on that host. If it is empty, tries the path of this
  // program, then "slip" in the PATH there. Ignored if the host is this one. `host` and `shell` must outlive the
  // connection.
  HostConnection(const std::string& host, const RemoteShell& shell, const std::string& program);
  ~HostConnection();  // kills the shell if it still runs

  // Starts the shell, or the agent itself if the host is this one. `mask`: the signals that are blocked in that
  // process. Throws kIo. If can_try_again(), another call tries the next program.
  void connect(const sigset_t& mask);
  bool can_try_again() const;  // the shell ended, because the program was not found, and another one is left to try

  // `frames` false: reads no frames, because the launcher has no room for more output.
  void watch(std::vector<pollfd>& watched, bool frames) const;
  // Reads the shell's standard error and exit status, and, if `frames`, the bytes of frames.
  void read(bool frames);
  std::optional<AgentFrame> next();  // a frame that read() has received
  void send(const AgentFrame& frame) { channel_->send(frame); }
  void flush() { channel_->flush(); }
  bool has_unsent() const { return channel_->unsent() > 0; }
  // The error output of the shell and the agent since the last call. why_ended() no longer includes it.
  std::string take_errors() { return std::exchange(errors_text_, {}); }
  // The shell has ended, and all its output has been read.
  bool ended() const { return status_.has_value() && drained_; }
  // When read(true) kills a shell that has closed its output and does not exit; 0: never.
  std::int64_t kill_at_ns() const;
  std::string why_ended() const;  // for a connection that ended too early: the reason, and advice
  void give_up();                 // kills the shell

  bool is_local() const { return local_; }

 private:
  void read_errors();
  void reap();

  const std::string& host_;
  const RemoteShell& shell_;
  const bool local_;
  std::vector<std::string> programs_;  // still to try, in this order
  std::string program_;
  pid_t pid_ = -1;
  std::optional<int> status_;  // the exit status of the shell; 128 + signal if a signal killed it
  std::optional<AgentChannel> channel_;
  OutputPipe errors_;  // the shell's standard error
  std::string errors_text_;
  std::int64_t closed_at_ns_ = 0;  // when the shell closed its output; 0: it has not
  bool drained_ = false;           // all bytes that the shell wrote before it ended have been read
};

}  // namespace slip::transport
