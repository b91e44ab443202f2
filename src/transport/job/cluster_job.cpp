#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "slip/unique_id.hpp"
#include "transport/bootstrap/rendezvous.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/host_connection.hpp"
#include "transport/job/job.hpp"
#include "transport/job/job_output.hpp"
#include "transport/job/placement.hpp"
#include "transport/job/rank_processes.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {
namespace {

constexpr int kHostLost = 1;  // exit status if a host is lost and no rank has failed
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kOtherFailuresNs = kSecondNs;   // waits after the first failed host, to report all at once
constexpr std::int64_t kEndMarginNs = 10 * kSecondNs;  // after the grace period: limit for the hosts to report the end
constexpr std::int64_t kKillLimitNs = 5 * kSecondNs;   // the same limit after a kill
constexpr std::int64_t kCloseLimitNs = kSecondNs;      // for the remote shells to exit by themselves
constexpr std::int64_t kPauseLimitNs = kSecondNs;      // to send kPause to the hosts
constexpr int kOwnSource = -1;                         // a source of JobOutput: this program itself

std::int64_t ns(std::chrono::milliseconds time) { return std::chrono::nanoseconds(time).count(); }

// The earlier of two times, where 0 means never.
std::int64_t earlier(std::int64_t a, std::int64_t b) { return a == 0 ? b : b == 0 ? a : std::min(a, b); }

// The launcher's data about each host of a job: its connection, its state and its ranks.
struct Host {
  enum class State {
    kConnecting,  // the agent has not answered
    kGreeted,     // the agent has answered, and was sent the job
    kAccepted,    // the host can run the job
    kRunning,     // the agent was sent kStart
    kDone,        // all ranks of the host have ended
    kFailed,      // the connection to the host was closed after an error
  };

  Host(const HostRanks& host, const RemoteShell& shell, const std::string& program)
      : placed(host), name(without_user(host.name)), connection(host.name, shell, program) {}

  bool is_over() const { return state == State::kDone || state == State::kFailed; }

  const HostRanks& placed;
  const std::string name;  // without the user
  HostConnection connection;
  State state = State::kConnecting;
  AgentHello hello;
  std::string failure;  // reason of kFailed, if no rank was started yet; empty: the host itself has not failed
  std::set<int> running;
  std::int64_t heard_ns = 0;
};

bool has_unsent(const Host& host) { return host.state == Host::State::kRunning && host.connection.has_unsent(); }

class HostGroup {
 public:
  // The references must outlive the group.
  HostGroup(const std::vector<HostRanks>& hosts, const RemoteShell& shell, const std::string& program) {
    for (const HostRanks& host : hosts) hosts_.emplace_back(host, shell, program);
  }

  std::list<Host>& all() { return hosts_; }
  const std::list<Host>& all() const { return hosts_; }
  Host& first() { return hosts_.front(); }  // the host of rank 0

  bool have_accepted() const {  // all of them
    return std::ranges::all_of(hosts_, [](const Host& host) { return host.state == Host::State::kAccepted; });
  }
  // Sends it to all hosts whose ranks run.
  void send_running(const AgentFrame& frame) {
    for (Host& host : hosts_) {
      if (host.state == Host::State::kRunning) host.connection.send(frame);
    }
  }

  // To all hosts whose agents have answered, also before the start: an agent may wait long for the other hosts.
  void send_heartbeat() {
    for (Host& host : hosts_) {
      if (host.state != Host::State::kConnecting && !host.is_over())
        host.connection.send({.kind = AgentFrameKind::kAlive});
    }
  }

  // Waits until the hosts whose ranks run have taken all frames, or until that time.
  void flush_running(std::int64_t until_ns) {
    while (std::ranges::any_of(hosts_, has_unsent) && base::now_ns() < until_ns) {
      std::vector<pollfd> watched;
      for (const Host& host : hosts_) {
        if (has_unsent(host)) host.connection.watch(watched, false);
      }
      poll_until(watched, until_ns);
      for (Host& host : hosts_) {
        if (has_unsent(host)) host.connection.flush();
      }
    }
  }

  // Ascending.
  std::vector<int> running_ranks() const {
    std::vector<int> result;
    for (const Host& host : hosts_) result.insert(result.end(), host.running.begin(), host.running.end());
    std::ranges::sort(result);
    return result;
  }

  // Addresses of the first host that the launcher or another host uses, separated by commas. They are ends of ssh
  // connections.
  std::string preferred_addresses() const {
    if (!hosts_.front().connection.is_local()) return hosts_.front().hello.own_host;
    std::string list;
    for (const Host& host : hosts_) {
      if (!host.connection.is_local()) list += (list.empty() ? "" : ",") + host.hello.from_host;
    }
    return list;
  }

  // Throws kIo with the failures of all hosts; does nothing if there is none.
  void throw_failures() const {
    std::string text;
    std::size_t count = 0;
    for (const Host& host : hosts_) {
      if (!host.failure.empty())
        text += fmt::format("{}host {}: {}", count++ == 0 ? "" : "\n", host.name, host.failure);
    }
    if (count == 0) return;
    if (count == 1) base::fail(ErrorCode::kIo, {}, "no rank was started: {}", text);
    base::fail(ErrorCode::kIo, {}, "no rank was started, {} of {} hosts failed:\n{}", count, hosts_.size(), text);
  }

 private:
  std::list<Host> hosts_;
};

class ClusterRun : base::NoCopy {
 public:
  explicit ClusterRun(const ClusterJob& job)
      : job_(job), shell_(job.shell, job.start_timeout / 2), hosts_(job.hosts, shell_, job.program) {}

  int run() {
    start_by_ns_ = base::now_ns() + ns(job_.start_timeout);
    for (Host& host : hosts_.all()) connect(host);
    while (!is_over()) {
      wait();
      while (const int number = signals_.next()) handle_signal(number);
      const bool reads = reads_frames();
      for (Host& host : hosts_.all()) serve(host, reads);
      check_time();
      output_.flush();
    }
    close();
    if (interrupted_ == 0) hosts_.throw_failures();
    return status_ != 0 || interrupted_ == 0 ? status_ : kOfSignal + interrupted_;
  }

 private:
  bool started() const { return !id_.empty(); }
  // If the reader of the output stops reading, this process reads no more frames. A job that is ending reads all.
  bool reads_frames() const { return !output_.is_full() || give_up_at_ns_ != 0; }
  bool is_over() const {
    if (failed_at_ns_ != 0 && base::now_ns() >= failed_at_ns_ + kOtherFailuresNs) return true;
    if (interrupted_ != 0 && !started()) return true;
    return std::ranges::all_of(hosts_.all(), &Host::is_over);
  }

  void connect(Host& host) {
    host.heard_ns = base::now_ns();
    try {
      host.connection.connect(signals_.before());
    } catch (const Error& error) {
      fail(host, base::bare_text(error));
    }
  }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    std::int64_t until = earlier(next_heartbeat_ns_, earlier(timeout_at_ns_, give_up_at_ns_));
    for (const Host& host : hosts_.all()) {
      if (host.state == Host::State::kFailed) continue;
      host.connection.watch(watched, reads_frames());
      if (reads_frames()) until = earlier(until, host.connection.kill_at_ns());
    }
    output_.watch(watched);
    if (!started()) until = earlier(until, start_by_ns_);
    if (failed_at_ns_ != 0) until = earlier(until, failed_at_ns_ + kOtherFailuresNs);
    poll_until(watched, until);
  }

  void serve(Host& host, bool reads) {
    if (host.state == Host::State::kFailed) return;
    host.connection.read(reads);
    if (!reads) host.heard_ns = base::now_ns();  // not silent: its frames are not read
    while (const std::optional<AgentFrame> frame = host.connection.next()) handle(host, *frame);
    if (host.state != Host::State::kConnecting) {
      const std::string errors = host.connection.take_errors();
      if (!errors.empty()) output_.add(error_source(host), STDERR_FILENO, errors, fmt::format("[host {}] ", host.name));
    }
    host.connection.flush();
    if (host.is_over() || !host.connection.ended()) return;
    if (host.state == Host::State::kConnecting && host.connection.can_try_again()) return connect(host);
    fail(host,
         host.state == Host::State::kConnecting ? host.connection.why_ended() : "the connection to its agent ended");
  }

  // The source number of a host's own error output: after those of all ranks.
  int error_source(const Host& host) const { return job_.ranks.nranks + host.placed.ranks.front(); }

  void handle(Host& host, const AgentFrame& frame) {
    host.heard_ns = base::now_ns();
    switch (frame.kind) {
      case AgentFrameKind::kReady: return greet(host, frame);
      case AgentFrameKind::kAccepted:
        if (host.state == Host::State::kGreeted) host.state = Host::State::kAccepted;
        return choose_address();
      case AgentFrameKind::kRefused: return fail(host, frame.body);
      case AgentFrameKind::kAddress:
        if (!started() && &host == &hosts_.first()) start(frame.body, static_cast<std::uint16_t>(frame.value));
        return;
      case AgentFrameKind::kOutput: return output_.add(frame.rank, frame.value, frame.body, prefix(host, frame.rank));
      case AgentFrameKind::kNotStarted: return not_started(host, frame);
      case AgentFrameKind::kExit: return rank_ended(host, {frame.rank, frame.value, frame.exited});
      case AgentFrameKind::kDone:
        finish_lines(host);
        host.state = Host::State::kDone;
        return;
      default: return;
    }
  }

  std::string prefix(const Host& host, int rank) const {
    return job_.ranks.tag_output ? fmt::format("[rank {} host {}] ", rank, host.name) : std::string();
  }

  void greet(Host& host, const AgentFrame& frame) {
    if (host.state != Host::State::kConnecting) return;
    const std::optional<AgentHello> hello = AgentHello::parse(frame.body);
    if (!hello || hello->protocol != kAgentProtocol)
      return fail(host,
                  fmt::format("its slip {} speaks version {} of the agent protocol, and this slip speaks version {}: "
                              "install the same slip there",
                              hello ? hello->version : "of unknown version",
                              hello ? std::to_string(hello->protocol) : "?", kAgentProtocol));
    host.hello = *hello;
    host.state = Host::State::kGreeted;
    static_cast<void>(host.connection.take_errors());  // the login succeeded, so its messages are dropped
    const AgentJob job{.ranks = host.placed.ranks,
                       .nranks = job_.ranks.nranks,
                       .directory = job_.ranks.directory,
                       .command = job_.ranks.command,
                       .variables = job_.ranks.changes,
                       .grace_ns = ns(job_.ranks.grace),
                       .silence_ns = ns(job_.silence),
                       .nccl = job_.nccl};
    host.connection.send({.kind = AgentFrameKind::kJob, .body = job.body()});
  }

  // When all hosts have accepted the job, chooses the address at which its ranks connect. On one host it is a Unix
  // socket. For several hosts, the first host reserves an address and a port, because rank 0 will listen there.
  void choose_address() {
    if (!hosts_.have_accepted()) return;
    if (hosts_.all().size() == 1) return start("unix:slip-launch-" + random_name(), 0);
    hosts_.first().connection.send({.kind = AgentFrameKind::kReserve, .body = hosts_.preferred_addresses()});
  }

  void start(const std::string& address, std::uint16_t port) {
    id_ = UniqueIdParts{address, port, random_secret(), true}.id().text();
    if (job_.ranks.timeout.count() > 0) timeout_at_ns_ = base::deadline_after(ns(job_.ranks.timeout));
    for (Host& host : hosts_.all()) {
      host.state = Host::State::kRunning;
      host.running = {host.placed.ranks.begin(), host.placed.ranks.end()};
      host.connection.send({.kind = AgentFrameKind::kStart, .body = id_});
    }
  }

  void fail(Host& host, const std::string& reason) {
    host.state = Host::State::kFailed;
    host.connection.give_up();
    finish_lines(host);
    if (!started()) {
      host.failure = reason;
      if (failed_at_ns_ == 0) failed_at_ns_ = base::now_ns();
      return;
    }
    // While the job is ending, a lost host is no failure: hosts may end in any order.
    if (status_ == 0 && interrupted_ == 0) {
      say(fmt::format("host {} with {} is lost: {}; ending the others", host.name, rank_list(host.placed.ranks),
                      reason));
    }
    if (status_ == 0) status_ = kHostLost;
    host.running.clear();
    end_all(SIGTERM);
  }

  void not_started(const Host& host, const AgentFrame& frame) {
    if (status_ == 0) {
      status_ = start_failure_status(frame.value);
      say(fmt::format("rank {} on host {}: cannot run '{}' in {}: {}", frame.rank, host.name,
                      job_.ranks.command.front(), job_.ranks.directory, std::strerror(frame.value)));
    }
    kill_all();
  }

  void rank_ended(Host& host, const RankExit& exit) {
    host.running.erase(exit.rank);
    if (exit.status() == 0 || status_ != 0) return;
    status_ = exit.status();
    if (interrupted_ != 0) return;  // all ranks have been asked to end already
    const std::size_t others = hosts_.running_ranks().size();
    std::string text = fmt::format("rank {} on host {} {}", exit.rank, host.name, exit.text());
    if (others > 0) text += fmt::format("; ending the other {}", others);
    say(text);
    end_all(SIGTERM);
  }

  void finish_lines(const Host& host) {
    for (const int rank : host.placed.ranks) output_.finish_line(rank);
    output_.finish_line(error_source(host));
  }

  // Writes a line of this program. It is queued after the output of the ranks, so that it never splits one of their
  // lines.
  void say(const std::string& text) {
    output_.add(kOwnSource, STDERR_FILENO, fmt::format("slip: {}\n", base::terminal_text(text)), {});
  }

  // The agents kill the ranks that have not ended after the grace period.
  void end_all(int number) {
    hosts_.send_running({.kind = AgentFrameKind::kSignal, .value = number});
    if (give_up_at_ns_ == 0) give_up_at_ns_ = base::now_ns() + ns(job_.ranks.grace) + kEndMarginNs;
  }

  void kill_all() {
    hosts_.send_running({.kind = AgentFrameKind::kKill});
    give_up_at_ns_ = earlier(give_up_at_ns_, base::now_ns() + kKillLimitNs);
  }

  void handle_signal(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) return pause();
    if (interrupted_ == 0) end_all(number);
    else kill_all();  // a second signal kills at once
    interrupted_ = number;
  }

  // Ctrl-Z: the ranks stop before this process does, and continue with it. The time in between counts for no limit.
  void pause() {
    const std::int64_t begun = base::now_ns();
    hosts_.send_running({.kind = AgentFrameKind::kPause});
    hosts_.flush_running(base::now_ns() + kPauseLimitNs);
    ::raise(SIGSTOP);
    const std::int64_t now = base::now_ns();
    for (std::int64_t* time : {&start_by_ns_, &timeout_at_ns_, &give_up_at_ns_, &failed_at_ns_}) {
      if (*time != 0) *time += now - begun;
    }
    for (Host& host : hosts_.all()) host.heard_ns = now;
    hosts_.send_running({.kind = AgentFrameKind::kResume});
  }

  void check_time() {
    const std::int64_t now = base::now_ns();
    check_hosts(now);
    if (timeout_at_ns_ != 0 && now >= timeout_at_ns_) {
      timeout_at_ns_ = 0;
      say(fmt::format("{} still running after {:g} s; ending the job", rank_list(hosts_.running_ranks()),
                      static_cast<double>(job_.ranks.timeout.count()) / 1000));
      if (status_ == 0) status_ = kJobTimedOut;
      end_all(SIGTERM);
    }
    if (give_up_at_ns_ == 0 || now < give_up_at_ns_) return;
    for (Host& host : hosts_.all()) {
      if (host.is_over()) continue;
      if (started())
        say(fmt::format("host {} has not reported the end of {}; no longer waiting for it", host.name,
                        rank_list(host.placed.ranks)));
      fail(host, "it did not report the end of its ranks");
    }
  }

  void check_hosts(std::int64_t now) {
    // If this process wakes up much too late, it was stopped. Then the hosts are not silent: it could not read.
    const bool late = next_heartbeat_ns_ != 0 && now > next_heartbeat_ns_ + ns(job_.silence) / 2;
    if (now >= next_heartbeat_ns_) {
      hosts_.send_heartbeat();
      next_heartbeat_ns_ = now + ns(job_.silence) / kHeartbeatsPerSilence;
    }
    const bool all_accepted = hosts_.have_accepted();
    for (Host& host : hosts_.all()) {
      if (host.is_over()) continue;
      if (late) host.heard_ns = now;
      // A host that has accepted the job only waits for the others, so it gets no reason, and the error does not name
      // it. If all have accepted, the launcher waits for the address from the first one.
      const bool answered = host.state == Host::State::kAccepted && !(all_accepted && &host == &hosts_.first());
      if (!started() && now >= start_by_ns_)
        fail(host, answered ? std::string()
                            : fmt::format("it has not answered within {:g} s: it may be busy or unreachable. Give a "
                                          "longer --start-timeout, or leave the host out",
                                          static_cast<double>(job_.start_timeout.count()) / 1000));
      else if (started() && now - host.heard_ns > ns(job_.silence))
        fail(host, fmt::format("it gives no sign of life: it has sent nothing for {:g} s",
                               static_cast<double>(job_.silence.count()) / 1000));
    }
  }

  // Writes the rest of the output, and waits a short time until the remote shells have exited. A signal ends the wait.
  void close() {
    const std::int64_t until = base::now_ns() + kCloseLimitNs;
    bool ended = false;
    for (bool stop = false; !stop && !(ended && output_.is_empty());) {
      std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
      ended = base::now_ns() >= until;
      for (Host& host : hosts_.all()) host.connection.read(true);
      ended = ended || std::ranges::all_of(hosts_.all(), [](const Host& host) {
                return host.state != Host::State::kDone || host.connection.ended();
              });
      output_.flush();
      if (ended && output_.is_empty()) break;
      output_.watch(watched);
      poll_until(watched, ended ? 0 : until);
      while (const int number = signals_.next()) stop = stop || number != SIGCHLD;
    }
  }

  const ClusterJob& job_;
  const RemoteShell shell_;
  const JobSignals signals_;
  HostGroup hosts_;
  JobOutput output_;
  std::string id_;  // UniqueId of the job; empty: no rank was started
  // Times; 0: never.
  std::int64_t start_by_ns_ = 0, timeout_at_ns_ = 0, give_up_at_ns_ = 0, failed_at_ns_ = 0, next_heartbeat_ns_ = 0;
  int status_ = 0, interrupted_ = 0;
};

}  // namespace

int run_cluster_job(const ClusterJob& job) { return ClusterRun(job).run(); }

}  // namespace slip::transport
