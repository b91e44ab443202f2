// The command that reaches a host, and what its failures mean.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "slip/error.hpp"
#include "transport/job/host_connection.hpp"

namespace slip::test::test_remote_shell {
namespace {

using std::chrono::seconds;
using transport::RemoteShell;

std::string line(const char* command, const char* host, const char* program = "/opt/slip") {
  return fmt::format("{}", fmt::join(RemoteShell(command, seconds(10)).agent_command(host, program), "|"));
}

TEST(RemoteShells, SshNeverAsksAndGivesUp) {
  EXPECT_EQ(line("ssh", "b"), "ssh|-T|-x|-oBatchMode=yes|-oConnectTimeout=10|b|/opt/slip|agent");
  EXPECT_EQ(line("/usr/bin/ssh -p 22", "me@b"),
            "/usr/bin/ssh|-p|22|-T|-x|-oBatchMode=yes|-oConnectTimeout=10|me@b|/opt/slip|agent");
  EXPECT_EQ(line("ssh", "b", "/my programs/slip"),
            "ssh|-T|-x|-oBatchMode=yes|-oConnectTimeout=10|b|'/my programs/slip'|agent");
}

TEST(RemoteShells, OthersGetTheHostWhereTheyWantIt) {
  EXPECT_EQ(line("rsh -n", "b"), "rsh|-n|b|/opt/slip|agent");
  EXPECT_EQ(line("kubectl exec -i {host} --", "pod-1"), "kubectl|exec|-i|pod-1|--|/opt/slip|agent");
}

TEST(RemoteShells, WordsAreDividedLikeInAShell) {
  EXPECT_EQ(fmt::format("{}", fmt::join(transport::split_words(R"(ssh  -o 'A b' "c\"d" e\ f '')"), "|")),
            R"(ssh|-o|A b|c"d|e f|)");
  EXPECT_THROW(transport::split_words("ssh 'a"), Error);
  EXPECT_THROW(RemoteShell("  ", seconds(1)), Error);
}

TEST(RemoteShells, FailuresAreExplainedWithWhatToTry) {
  const RemoteShell shell("ssh -p 22", seconds(10));
  const struct {
    int status;
    const char* said;
    const char* expected;
  } cases[] = {
      {255, "No ED25519 host key is known for b and ...\r\nHost key verification failed.\r\n", "ssh-keyscan b >>"},
      {255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\r\nHost key verification failed.", "ssh-keygen -R b"},
      {255, "me@b: Permission denied (publickey).", "ssh-copy-id b"},
      {255, "ssh: Could not resolve hostname b: Name or service not known", "give the IP address"},
      {255, "ssh: connect to host b port 22: Connection refused", "Start sshd there"},
      {255, "ssh: connect to host b port 22: Connection timed out", "`ssh -p 22 me@b true`"},
      {255, "ssh: connect to host b port 22: No route to host", "Is it up"},
      {127, "bash: line 1: /opt/slip: No such file or directory", "no program '/opt/slip'. Install"},
      {126, "permission denied", "cannot be run there"},
      {2, "slip: no command 'agent': there are ...", "older Slipstream"},
      {9, "\x1b[31mred", "ended with status 9"},
  };
  for (const auto& one : cases) {
    const std::string text = shell.explain("me@b", "/opt/slip", one.status, one.said);
    EXPECT_NE(text.find(one.expected), std::string::npos) << text;
    EXPECT_NE(text.find("ssh wrote: "), std::string::npos) << text;
    EXPECT_EQ(text.find('\x1b'), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace slip::test::test_remote_shell
