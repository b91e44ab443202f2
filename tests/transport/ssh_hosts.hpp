// Hosts of a test with an sshd each: network namespaces (support/hosts.hpp) with keys and a configuration of this test
// alone. Nothing outside of a temporary folder is read or written.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/hosts.hpp"
#include "transport/launched.hpp"
#include "transport/socket/socket.hpp"

namespace slip::test {

class SshHosts {
 public:
  struct Options {
    Family family = Family::kIpv4;
    std::set<int> unknown = {};  // hosts whose key the client does not know
    std::set<int> without = {};  // hosts without an sshd
  };
  explicit SshHosts(int count) : SshHosts(count, Options{}) {}
  SshHosts(int count, const Options& options) : hosts_(count, options.family) {
    reason_ = hosts_.reason();
    for (const char* tool : {"/usr/sbin/sshd", "/usr/bin/ssh", "/usr/bin/ssh-keygen"}) {
      if (reason_.empty() && ::access(tool, X_OK) != 0)
        reason_ = std::string(tool) + " is missing (Debian: openssh-server, openssh-client)";
    }
    if (reason_.empty() && !make_keys(count, options)) reason_ = "ssh-keygen made no keys";
    for (int host = 0; host < count && reason_.empty(); ++host) {
      if (!options.without.contains(host)) hosts_.within(host, [&] { start(host); });
    }
  }
  ~SshHosts() {
    for (const pid_t server : servers_) {
      ::kill(server, SIGKILL);
      ::waitpid(server, nullptr, 0);
    }
  }
  SshHosts(const SshHosts&) = delete;
  SshHosts& operator=(const SshHosts&) = delete;

  const std::string& reason() const { return reason_; }  // why there are none; empty: there are
  Hosts& hosts() { return hosts_; }
  const Folder& folder() const { return folder_; }
  std::string address(int host) const { return hosts_.address(host); }
  std::string ssh() const { return "ssh -F " + folder_.path("ssh_config"); }

  // Runs `slip launch --hosts HOSTS --ssh ...` on a host.
  std::unique_ptr<Launched> launch(int from, const std::string& list, std::vector<std::string> more,
                                   const std::map<std::string, std::string>& variables = {}) {
    std::vector<std::string> words{"launch", "--hosts", list, "--ssh", ssh()};
    words.insert(words.end(), more.begin(), more.end());
    std::unique_ptr<Launched> result;
    hosts_.within(from, [&] { result = std::make_unique<Launched>(words, variables); });
    return result;
  }

 private:
  static bool in_shell(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

  bool make_keys(int count, const Options& options) {
    const std::string make = "ssh-keygen -q -t ed25519 -N '' -C slip-test -f ";
    if (!in_shell(make + folder_.path("host_key")) || !in_shell(make + folder_.path("user_key"))) return false;
    std::string key;
    std::getline(std::ifstream(folder_.path("host_key.pub")), key);
    std::string known;
    for (int host = 0; host < count; ++host) {
      if (!options.unknown.contains(host)) known += address(host) + " " + key + "\n";
    }
    folder_.write("known_hosts", known);
    folder_.write("ssh_config", "UserKnownHostsFile " + folder_.path("known_hosts") + "\nGlobalKnownHostsFile none\n" +
                                    "IdentityFile " + folder_.path("user_key") +
                                    "\nIdentitiesOnly yes\nIdentityAgent none\nUser root\n");
    folder_.write("sshd_config", "HostKey " + folder_.path("host_key") + "\nAuthorizedKeysFile " +
                                     folder_.path("user_key.pub") +
                                     "\nPidFile none\nUsePAM no\nStrictModes no\nPasswordAuthentication no\n"
                                     "KbdInteractiveAuthentication no\nPermitRootLogin yes\nPrintMotd no\n");
    return true;
  }

  // sshd wants the folder /run/sshd; it gets one in a mount namespace of its own.
  void start(int host) {
    const std::string command = "mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -e -f " +
                                folder_.path("sshd_config") + " 2>" + folder_.path("sshd.log");
    std::vector<std::string> words{"unshare", "-m", "sh", "-c", command};
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    pid_t server = -1;
    if (::posix_spawnp(&server, "unshare", nullptr, nullptr, pointers.data(), environ) != 0) {
      reason_ = "unshare is missing (Debian: util-linux)";
      return;
    }
    servers_.push_back(server);
    wait_for_server(address(host));
  }

  void wait_for_server(const std::string& where) {
    const transport::Deadline deadline{base::deadline_after(20'000'000'000), nullptr};
    for (;;) {
      int error = 0;
      const transport::Socket socket = transport::Socket::begin_connect(transport::resolve(where, 22).front(), error);
      if (socket.valid()) {
        static_cast<void>(transport::wait_for(socket.descriptor(), POLLOUT, deadline));
        error = transport::connect_error(socket);
      }
      if (error == 0) return;
      if (transport::wait_a_moment(2'000'000, deadline) == transport::Waited::kTimeout) {
        std::ifstream log(folder_.path("sshd.log"));
        reason_ = "sshd does not listen at " + where;
        ADD_FAILURE() << reason_ << ": " << std::string(std::istreambuf_iterator<char>(log), {});
        return;
      }
    }
  }

  Folder folder_;
  Hosts hosts_;
  std::string reason_;
  std::vector<pid_t> servers_;
};

}  // namespace slip::test
