// RemoteShell: the command that runs a program on another host, usually ssh, and what its failures mean.
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

  // Runs `program` with the argument "agent" on the host. The host replaces {host}, or follows the command. ssh also
  // gets options: it must never ask for a password, and must give up after the timeout. Options of the user come first,
  // and so win.
  std::vector<std::string> run_agent(const std::string& host, const std::string& program) const;

  // Why the agent did not run, and what to try. `status`: exit status of the shell; `said`: its standard error.
  std::string explain(const std::string& host, const std::string& program, int status, const std::string& said) const;
  const std::string& name() const { return words_.front(); }

 private:
  std::string to_try(const std::string& host) const;  // "ssh -p 2222 b"

  std::vector<std::string> words_;
  bool is_ssh_ = false;
  std::chrono::milliseconds connect_timeout_;
};

}  // namespace slip::transport
