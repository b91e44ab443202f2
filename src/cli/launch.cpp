// `slip launch -n N -- PROGRAM`: starts the ranks of a job on this host or on several, and ends them together.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/env.hpp"
#include "base/fail.hpp"
#include "cli/commands.hpp"
#include "transport/job/job.hpp"

namespace slip::cli {
namespace {

// Slipstream's libnccl.so.2: beside the program in a build folder, in the library folder of an installation.
std::string nccl_library() {
  namespace fs = std::filesystem;
  const fs::path folder = fs::read_symlink("/proc/self/exe").parent_path();
  std::string searched;
  for (const char* const place : {SLIP_NCCL_BUILT, SLIP_NCCL_INSTALLED}) {
    const fs::path found = (folder / place / "libnccl.so.2").lexically_normal();
    if (fs::exists(found)) return found.string();
    searched += fmt::format("{}{}", searched.empty() ? "" : ", ", found.string());
  }
  throw Error(ErrorCode::kIo, fmt::format("--nccl: there is no libnccl.so.2 of Slipstream; searched: {}", searched),
              {});
}

// For --nccl: adds Slipstream's libnccl.so.2 of this host to LD_PRELOAD among the changed variables. Throws kIo if it
// is not there. The first library that is preloaded wins, so Slipstream's comes before those of the caller.
void preload_nccl(std::map<std::string, std::string>& changes) {
  const auto given = changes.find("LD_PRELOAD");
  const std::string others = given != changes.end() ? given->second : base::env_text("LD_PRELOAD");
  changes["LD_PRELOAD"] = nccl_library() + (others.empty() ? "" : ":" + others);
}

struct LaunchOptions {
  transport::ClusterJob job;
  int ranks = 0;                                                         // 0: not given
  double timeout = 0, grace = 5, start_timeout = 20, host_timeout = 60;  // seconds
  std::vector<std::string> changes;
  std::string hosts, host_file, ssh;
  bool tag_output = false, no_tag_output = false;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

// The variables that are passed on to ranks of other hosts: the variables of Slipstream and NCCL, except those that
// make this process a rank of another job.
std::map<std::string, std::string> forwarded_variables() {
  std::map<std::string, std::string> result = base::env_named("NCCL_");
  result.merge(base::env_named("SLIP_"));
  for (const char* name : {"SLIP_RANK", "SLIP_NRANKS", "SLIP_LOCAL_RANK", "SLIP_ID", "SLIP_JOB", "SLIP_SSH"})
    result.erase(name);
  return result;
}

// NAME=VALUE, or NAME for its value here.
void apply(const std::string& change, std::map<std::string, std::string>& variables) {
  const std::size_t equals = change.find('=');
  if (equals == 0 || change.empty()) throw UsageError(fmt::format("--env {}: NAME=VALUE or NAME is expected", change));
  if (equals != std::string::npos) {
    variables[change.substr(0, equals)] = change.substr(equals + 1);
    return;
  }
  const std::map<std::string, std::string> set = base::env_named(change);
  const auto found = set.find(change);
  if (found == set.end()) throw UsageError(fmt::format("--env {0}: {0} is not set here; write {0}=VALUE", change));
  variables[change] = found->second;
}

std::string read_host_file(const std::string& path) {
  std::ifstream file(path);
  std::error_code error;
  // Reading a directory would throw an error that does not name it.
  if (!file || std::filesystem::is_directory(path, error))
    throw UsageError(fmt::format("--hostfile {}: the file cannot be read", path));
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<transport::HostRanks> placed_hosts(const LaunchOptions& options) {
  try {
    const std::vector<transport::HostEntry> entries =
        options.host_file.empty() ? transport::parse_hosts(options.hosts)
                                  : transport::parse_host_file(read_host_file(options.host_file), options.host_file);
    return transport::place_ranks(entries, options.ranks);
  } catch (const Error& error) {
    throw UsageError(base::bare_text(error));
  }
}

int run_on_hosts(LaunchOptions& options) {
  transport::ClusterJob& job = options.job;
  job.hosts = placed_hosts(options);
  job.ranks.nranks = 0;
  for (const transport::HostRanks& host : job.hosts) job.ranks.nranks += static_cast<int>(host.ranks.size());
  const std::string set = base::env_text("SLIP_SSH");
  if (!options.ssh.empty() || !set.empty()) job.shell = options.ssh.empty() ? set : options.ssh;
  job.ranks.changes = forwarded_variables();
  for (const std::string& change : options.changes) apply(change, job.ranks.changes);
  // Absolute: a relative path would begin at the login's folder on the other hosts, and here at the current one.
  job.ranks.directory = job.ranks.directory.empty() ? std::filesystem::current_path().string()
                                                    : std::filesystem::absolute(job.ranks.directory).string();
  job.ranks.tag_output = !options.no_tag_output;
  job.start_timeout = milliseconds(options.start_timeout);
  job.silence = milliseconds(options.host_timeout);
  return transport::run_cluster_job(job);
}

// Opens /dev/null in the place of each standard descriptor that is closed. Otherwise a socket or a signalfd of the
// launcher would get its number, and the output of the ranks would be written to that.
void open_standard_descriptors() {
  int descriptor = 0;
  while ((descriptor = ::open("/dev/null", O_RDWR)) >= 0 && descriptor <= STDERR_FILENO) {}
  if (descriptor > STDERR_FILENO) ::close(descriptor);
}

int run_launch(LaunchOptions& options) {
  open_standard_descriptors();
  transport::LocalJob& ranks = options.job.ranks;
  ranks.timeout = milliseconds(options.timeout);
  ranks.grace = milliseconds(options.grace);
  if (!options.hosts.empty() || !options.host_file.empty()) return run_on_hosts(options);
  if (options.ranks == 0) throw UsageError("slip launch needs -n, the number of ranks, or --hosts with slots");
  ranks.nranks = options.ranks;
  for (const std::string& change : options.changes) apply(change, ranks.changes);
  if (options.job.nccl) preload_nccl(ranks.changes);
  ranks.tag_output = options.tag_output;
  return transport::run_local_job(ranks);
}

constexpr const char* kLaunchFooter =
    "\nEach of the N processes gets its rank (SLIP_RANK, 0 to N-1), the number of ranks (SLIP_NRANKS), its rank\n"
    "on its host (SLIP_LOCAL_RANK) and the address where ranks connect (SLIP_ID) in its environment.\n"
    "\n"
    "  slip launch -n 4 --tag-output -- sh -c 'echo I am $SLIP_RANK of $SLIP_NRANKS'\n"
    "  slip launch -n 8 --timeout 60 -- ./train --steps 100\n"
    "  slip launch -n 2 --nccl -- ./made_for_nccl\n"
    "  slip launch --hosts a,b,c -n 8 -- ./train           ranks 0-2 on a, 3-5 on b, 6 and 7 on c\n"
    "  slip launch --hosts a:4,b:4 -- slip bench all_reduce\n"
    "\n"
    "With --nccl a program made for NCCL communicates by Slipstream: its libnccl.so.2 is preloaded (LD_PRELOAD).\n"
    "\n"
    "If a rank fails, the others get SIGTERM and, after the grace period, SIGKILL. A signal to this program goes\n"
    "to all ranks; a second one kills them. If this program is killed, all ranks and the processes that they have\n"
    "started are killed, too; they are found by the variable SLIP_JOB. Ranks do not read from the terminal.\n"
    "Status: that of the first rank that failed, or 128 + its signal; 124 after the timeout; 126 or 127 if\n"
    "the program cannot be started; 1 if a host cannot be reached or is lost.\n"
    "\n"
    "Several hosts: ssh must reach each one without a password, and Slipstream must be installed there, at the path\n"
    "of this program or in the PATH. No rank starts before all hosts have answered. HOST is a name or an address,\n"
    "USER@HOST, HOST:SLOTS for the number of ranks that it takes, or [IPv6]:SLOTS. Hosts with slots are filled\n"
    "first; the others share the rest evenly. localhost, and this host's own name, need no ssh. A hostfile has one\n"
    "host per line, as HOST, HOST:SLOTS or HOST slots=N. The program runs in the working directory of this one, with\n"
    "the variables SLIP_* and NCCL_* of this one, and those of -x. See docs/clusters.md.\n"
    "\n"
    "mpirun, mpiexec, srun, torchrun and Kubernetes jobs can start the ranks, too: their variables are understood.\n"
    "Or start them yourself with the same SLIP_ID=host:port everywhere, an address where rank 0 can listen. Then only\n"
    "processes with the same secret can join: SLIP_SECRET (at least 16 characters), the file SLIP_SECRET_FILE,\n"
    "or ~/.config/slipstream/secret, which is created on first use and must be the same on all hosts.";

// An empty text comes from a variable that is not set. Without this check, all ranks would run on this host.
CLI::Validator not_empty() {
  return CLI::Validator(
      [](std::string& text) { return text.empty() ? std::string("is empty: it must name a host") : std::string(); },
      "");
}

void add_host_options(CLI::App& launch, LaunchOptions& options) {
  CLI::Option* const hosts =
      launch.add_option("--hosts", options.hosts, "Run the ranks on these hosts: HOST[:SLOTS],...")->check(not_empty());
  launch.add_option("--hostfile", options.host_file, "The same from a file, one host per line")
      ->check(not_empty())
      ->excludes(hosts);
  launch.add_option("--ssh", options.ssh,
                    "Command that reaches a host, with its options; {host} in it is the host (SLIP_SSH, or ssh)");
  launch.add_option("--slip", options.job.program,
                    "The program slip on the other hosts (the path of this one, or else slip in their PATH)");
  launch.add_option("--start-timeout", options.start_timeout, "All hosts must answer within this many seconds (20)")
      ->check(number_between(0.1, 1e6));
  launch
      .add_option("--host-timeout", options.host_timeout,
                  "Seconds without a heartbeat after which a host, or on a host this program, counts as lost (60)")
      ->check(number_between(1, 1e6));
}

}  // namespace

std::function<int()> add_launch(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* launch = app.add_subcommand("launch", "Start a program as several ranks that find each other");
  launch->footer(kLaunchFooter);
  launch->add_option("-n,--ranks", options->ranks, "Number of processes; may be left out if hosts have slots")
      ->check(CLI::Range(1, 4096));
  add_host_options(*launch, *options);
  launch->add_option("--timeout", options->timeout, "End the job after this many seconds")
      ->check(number_between(0.001, 1e9));
  launch->add_option("--grace", options->grace, "Seconds between SIGTERM and SIGKILL (5)")
      ->check(number_between(0.0, 1e6));
  CLI::Option* const tags =
      launch->add_flag("--tag-output", options->tag_output,
                       "Begin each line of output with its rank: [3] ...; with --hosts this is the default");
  launch->add_flag("--no-tag-output", options->no_tag_output, "With --hosts: lines without [rank 3 host b]")
      ->excludes(tags);
  launch->add_flag("--nccl", options->job.nccl, "Preload Slipstream's libnccl.so.2, for programs made for NCCL");
  launch
      ->add_option("-x,--env", options->changes,
                   "NAME=VALUE for the ranks' environment, or NAME for its value here; may be repeated")
      ->allow_extra_args(false);
  launch->add_option("--workdir", options->job.ranks.directory, "Directory where the program runs (this one)");
  launch->add_option("PROGRAM", options->job.ranks.command, "The program and its arguments, after --")->required();
  return [options] { return run_launch(*options); };
}

// `slip agent`: the program that `slip launch --hosts` starts on each host. Hidden: users do not call it.
std::function<int()> add_agent(CLI::App& app) {
  CLI::App* command = app.add_subcommand("agent", "Run the ranks of one host for slip launch --hosts");
  command->group("");
  return [] { return transport::run_agent({.version = version_text(), .preload_nccl = preload_nccl}); };
}

}  // namespace slip::cli
