// RemoteShell: the command that runs a program on another host, usually ssh, and explanations of its failures.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace slip::transport {

// The words of a command line as a shell divides them: quotes and backslashes work, variables and patterns do not.
// Throws kInvalidValue if a quote is not closed.
std::vector<std::string> split_words(std::string_view line);

class RemoteShell {
 public:
  // `command`: as in --ssh, for example "ssh -p 2222" or "kubectl exec -i {host} --". Throws kInvalidValue if it is
  // empty.
  RemoteShell(std::string_view command, std::chrono::milliseconds connect_timeout);

  // The command line that runs `program agent` on the host. The host replaces {host}; without {host} it is appended.
  // For ssh, options are added: never ask for a password, and stop after the timeout. They follow the options of the
  // user, which therefore take precedence.
  std::vector<std::string> agent_command(const std::string& host, const std::string& program) const;

  // Why the agent did not run, and what to try. `status`: exit status of the shell; `output`: its error output.
  std::string explain(const std::string& host, const std::string& program, int status, const std::string& output) const;
  const std::string& name() const { return words_.front(); }

 private:
  std::string to_try(const std::string& host) const;  // "ssh -p 2222 b"

  std::vector<std::string> words_;
  bool is_ssh_ = false;
  std::chrono::milliseconds connect_timeout_;
};

}  // namespace slip::transport
