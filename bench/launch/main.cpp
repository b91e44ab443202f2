// `make bench ONLY=launch`: how long 64 ranks on 8 hosts take to start. The hosts are network namespaces with an sshd
// each (hosts.sh). Measured from the start of `slip launch --hosts` until all ranks have initialised a communicator.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "slip/communicator.hpp"
#include "support/harness.hpp"
#include "support/process.hpp"

namespace slip::bench {
namespace {

constexpr const char* kRankWord = "--rank";
constexpr const char* kReady = "ready";
constexpr int kHosts = 8, kRanks = 64;
constexpr double kLimitNs = 2e9;
constexpr int kLacking = 77;  // status of hosts.sh

int run_rank() {
  const Communicator comm = Communicator::init(Device::open("cpu", {.compute_workers = 1}));
  std::printf("%s\n", kReady);
  return 0;
}

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

// The hosts, made at first use and removed at the end.
class Hosts {
 public:
  Hosts() : folder_(std::filesystem::temp_directory_path() / ("slip-bench-launch-" + std::to_string(::getpid()))) {
    Child script({"bash", kScript, "start", folder_.string(), std::to_string(kHosts)});
    reason_ = script.read_all();
    const int status = script.status();
    if (status == 0) reason_.clear();
    else if (status != kLacking) throw std::runtime_error("hosts.sh failed with status " + std::to_string(status));
  }
  ~Hosts() { static_cast<void>(Child({"bash", kScript, "stop", folder_.string()}).status()); }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

  const std::string& reason() const { return reason_; }  // why there are none; empty: there are
  std::vector<std::string> on_login_node(std::vector<std::string> words) const {
    words.insert(words.begin(), (folder_ / "login").string());
    return words;
  }
  std::string ssh(const std::string& options) const { return "ssh -F " + (folder_ / "ssh_config").string() + options; }
  static std::string list() {
    std::string text;
    for (int host = 1; host <= kHosts; ++host) text += (host == 1 ? "10.79.0." : ",10.79.0.") + std::to_string(host);
    return text;
  }

 private:
  static constexpr const char* kScript = SLIP_SOURCE_DIR "/bench/launch/hosts.sh";
  const std::filesystem::path folder_;
  std::string reason_;
};

std::size_t count_ready(const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(kReady, at)) != std::string::npos; ++at) ++count;
  return count;
}

// What ssh alone takes to reach all hosts at once.
double plain_ssh_ns(const Hosts& hosts, const std::string& options) {
  const std::string loop = "for ((i = 1; i <= " + std::to_string(kHosts) + "; ++i)); do ";
  const Timer timer;
  Child ssh(hosts.on_login_node({"bash", "-c", loop + hosts.ssh(options) + " 10.79.0.$i true & done; wait"}));
  static_cast<void>(ssh.status());
  return timer.elapsed_ns();
}

std::optional<double> start_ranks(Context& context, const std::string& ssh_options) {
  static const Hosts kMade;
  if (!kMade.reason().empty()) return context.skip(kMade.reason());
  static std::map<std::string, double> plain_ns;  // by options, measured once
  if (!plain_ns.contains(ssh_options)) plain_ns[ssh_options] = plain_ssh_ns(kMade, ssh_options);
  context.note("ssh alone to " + std::to_string(kHosts) + " hosts at once: " + format_ns(plain_ns[ssh_options]));
  const Timer timer;
  Child job(kMade.on_login_node({SLIP_PROGRAM, "launch", "--hosts", Hosts::list(), "--ssh", kMade.ssh(ssh_options),
                                 "-n", std::to_string(kRanks), "--timeout", "60", "--", own_program(), kRankWord}));
  std::string text;
  while (count_ready(text) < kRanks && job.read(text)) {}
  const double elapsed = timer.elapsed_ns();
  text += job.read_all();
  if (job.status() != 0 || count_ready(text) != kRanks)
    throw std::runtime_error("slip launch failed with status " + std::to_string(job.status()));
  return elapsed;
}

}  // namespace
}  // namespace slip::bench

int main(int argc, char** argv) {
  using namespace slip::bench;
  if (argc == 2 && std::strcmp(argv[1], kRankWord) == 0) return run_rank();
  Harness harness;
  // The key exchange that OpenSSH 9 prefers takes 0.1 s of CPU time at each end. Here all hosts share the cores, so the
  // second bar leaves it out.
  const struct {
    const char* name;
    const char* ssh_options;
  } kinds[] = {{"start_64_ranks_on_8_hosts", ""},
               {"start_64_ranks_on_8_hosts_curve25519", " -oKexAlgorithms=curve25519-sha256"}};
  for (const auto& kind : kinds) {
    harness.add(
        {.area = "launch",
         .name = kind.name,
         .unit = Unit::kNanoseconds,
         .ours = [options = std::string(kind.ssh_options)](Context& context) { return start_ranks(context, options); },
         .limit = kLimitNs});
  }
  return harness.run(argc, argv);
}
