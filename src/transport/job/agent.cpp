#include "transport/job/agent.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "transport/job/agent_channel.hpp"
#include "transport/job/job_signals.hpp"
#include "transport/job/port_reservation.hpp"
#include "transport/job/rank_processes.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kFirstSilenceNs = 60 * kSecondNs;  // until the job has told its own limit
constexpr int kAlivePerSilence = 4;                       // signs of life within that limit
constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;  // then the agent reads no more output of its ranks
constexpr std::size_t kPiece = std::size_t{32} << 10;     // of output in one frame

// The two ends of the ssh connection, by its variable SSH_CONNECTION: "client port server port".
void read_connection(AgentHello& hello) {
  std::istringstream words(base::env_text("SSH_CONNECTION"));
  std::string port;
  words >> hello.from_host >> port >> hello.own_host;
}

// The descriptors of the standard input and output, moved away: a program that this process starts must not have them.
OwnedDescriptor take_standard(int number, int flags) {
  OwnedDescriptor taken(::fcntl(number, F_DUPFD_CLOEXEC, 3));
  const OwnedDescriptor nothing(::open("/dev/null", flags | O_CLOEXEC));
  if (taken.number() < 0 || nothing.number() < 0)
    base::fail(Code::kIo, {}, "the agent has no standard input or output: slip launch starts it, not a user");
  ::dup2(nothing.number(), number);
  return taken;
}

// The read end of a pipe to which a rank writes.
struct RankOutput {
  int rank = 0, stream = STDOUT_FILENO;
  OwnedDescriptor pipe;
};

class Agent : base::NoCopy {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        channel_(AgentChannel::Side::kAgent, take_standard(STDIN_FILENO, O_RDONLY),
                 take_standard(STDOUT_FILENO, O_WRONLY)) {
    // Writing to a closed connection must not end this process before it has ended its ranks.
    sigset_t broken;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    ::sigprocmask(SIG_BLOCK, &broken, nullptr);
    heard_ns_ = base::now_ns();
  }

  int run() {
    AgentHello hello{.version = options_.version};
    read_connection(hello);
    channel_.send({.kind = AgentFrameKind::kReady, .body = hello.body()});
    while (!over()) {
      wait();
      channel_.pump();
      while (std::optional<AgentFrame> frame = channel_.next()) handle(*frame);
      for (RankOutput& output : outputs_) pass_on(output, kPiece);
      while (const int number = signals_.next()) take(number);
      if (ranks_) ranks_->reap([this](const RankExit& exit) { report(exit); });
      check_time();
      send_rest();
      channel_.flush();
    }
    // A rank that ended may have left processes behind; without a launcher nobody would end them.
    if (lost_ && ranks_) ranks_->leave_to_guard();
    return lost_ ? 1 : 0;
  }

 private:
  bool running() const { return ranks_ && ranks_->any_running(); }
  bool over() const { return !running() && (lost_ || (complete_ && channel_.unsent() == 0)); }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    if (!channel_.ended()) watched.push_back({channel_.in(), POLLIN, 0});
    if (channel_.unsent() > 0) watched.push_back({channel_.out(), POLLOUT, 0});
    for (const RankOutput& output : outputs_) {
      if (channel_.unsent() < kMaxUnsent) watched.push_back({output.pipe.number(), POLLIN, 0});
    }
    std::int64_t until = std::min(next_alive_ns_, paused_ ? next_alive_ns_ : heard_ns_ + silence_ns_);
    if (ranks_ && ranks_->kill_at_ns() != 0) until = std::min(until, ranks_->kill_at_ns());
    poll_until(watched, std::max<std::int64_t>(until, 1));
  }

  void handle(const AgentFrame& frame) {
    heard_ns_ = base::now_ns();
    switch (frame.kind) {
      case AgentFrameKind::kJob: return accept(frame.body);
      case AgentFrameKind::kReserve: return reserve(frame.body);
      case AgentFrameKind::kStart: return start(frame.body);
      case AgentFrameKind::kSignal: return end_ranks(frame.value);
      case AgentFrameKind::kKill: return end_ranks(SIGKILL);
      case AgentFrameKind::kPause:
      case AgentFrameKind::kResume:
        paused_ = frame.kind == AgentFrameKind::kPause;
        if (ranks_) ranks_->signal_all(paused_ ? SIGSTOP : SIGCONT);
        return;
      default: return;
    }
  }

  // Checks what can be wrong on this host before a rank starts anywhere.
  void accept(const std::string& body) {
    job_ = AgentJob::parse(body);
    if (!job_) return refuse("the description of the job is not readable");
    silence_ns_ = job_->silence_ns;
    next_alive_ns_ = 0;  // the next sign of life was planned with another limit
    std::error_code error;
    if (!std::filesystem::is_directory(job_->directory, error))
      return refuse(fmt::format("there is no folder '{}', where the program must run: make it, or give --workdir",
                                job_->directory));
    try {
      if (job_->nccl && options_.preload_nccl) options_.preload_nccl(job_->variables);
      ranks_ = std::make_unique<RankProcesses>(
          std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::nanoseconds(job_->grace_ns)),
          signals_.before());
    } catch (const Error& failure) {
      return refuse(base::bare_text(failure));
    }
    channel_.send({.kind = AgentFrameKind::kAccepted});
  }

  void refuse(const std::string& reason) {
    refused_ = true;
    channel_.send({.kind = AgentFrameKind::kRefused, .body = reason});
  }

  std::string variable(const char* name) const {
    const auto found = job_->variables.find(name);
    return found != job_->variables.end() ? found->second : base::env_text(name);
  }

  void reserve(const std::string& preferred) {
    if (!job_) return refuse("an address was asked for before the job");
    std::string rule = variable("SLIP_SOCKET_IFNAME");
    if (rule.empty()) rule = variable("NCCL_SOCKET_IFNAME");
    try {
      // The launcher's SLIP_PORTS is in the job, and perhaps not in the environment of this process.
      port_.emplace(rendezvous_address(rule, preferred), base::parse_ports(variable("SLIP_PORTS")));
    } catch (const Error& failure) {
      return refuse(base::bare_text(failure));
    }
    channel_.send(
        {.kind = AgentFrameKind::kAddress, .value = port_->address().port(), .body = port_->address().host()});
  }

  void start(const std::string& id) {
    if (!ranks_) return refuse("a start was asked for before the job");
    started_ = true;
    add_own_folder();
    for (std::size_t i = 0; i < job_->ranks.size(); ++i) {
      const int rank = job_->ranks[i];
      RankProgram program{.command = job_->command,
                          .variables = RankVariables{rank, job_->nranks, static_cast<int>(i), id}.with(job_->variables),
                          .directory = job_->directory};
      const OwnedDescriptor out = add_output(rank, STDOUT_FILENO), err = add_output(rank, STDERR_FILENO);
      program.out = out.number();
      program.err = err.number();
      if (const int error = ranks_->start(rank, program); error != 0) {
        channel_.send({.kind = AgentFrameKind::kNotStarted, .rank = rank, .value = error});
        return end_ranks(SIGKILL);
      }
    }
  }

  // The folder of this program ends the PATH of the ranks, so that `slip bench` runs where slip is in no PATH.
  void add_own_folder() {
    std::error_code error;
    const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
    if (!error) job_->variables["PATH"] = variable("PATH") + ":" + own.parent_path().string();
  }

  // Returns the end to which the rank writes.
  OwnedDescriptor add_output(int rank, int stream) {
    Pipe pipe = make_pipe();
    ::fcntl(pipe.read.number(), F_SETFL, O_NONBLOCK);
    outputs_.push_back({rank, stream, std::move(pipe.read)});
    return std::move(pipe.write);
  }

  // Sends up to `limit` bytes that have arrived; closes at the end of the pipe. While the launcher takes no more bytes,
  // they stay in the pipe, and the rank waits.
  void pass_on(RankOutput& output, std::size_t limit) {
    char bytes[kPiece];
    for (std::size_t sent = 0; sent < limit && output.pipe.number() >= 0 && channel_.unsent() < kMaxUnsent;) {
      const ssize_t count = ::read(output.pipe.number(), bytes, std::min(kPiece, limit - sent));
      if (count < 0 && errno == EINTR) continue;
      if (count == 0) output.pipe.reset();
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
      channel_.send({.kind = AgentFrameKind::kOutput,
                     .rank = output.rank,
                     .value = output.stream,
                     .body = std::string(bytes, static_cast<std::size_t>(count))});
    }
  }

  void report(const RankExit& exit) {
    channel_.send({.kind = AgentFrameKind::kExit, .rank = exit.rank, .value = exit.value, .exited = exit.exited});
  }

  void end_ranks(int number) {
    if (!started_) refused_ = true;  // nothing is left to do
    if (ranks_) ranks_->end_all(number);
  }

  // A signal that a user sent to the agent itself.
  void take(int number) {
    if (number != SIGCHLD && number != SIGTSTP) end_ranks(number);
  }

  void check_time() {
    const std::int64_t now = base::now_ns();
    if (now >= next_alive_ns_) {
      channel_.send({.kind = AgentFrameKind::kAlive});
      next_alive_ns_ = now + silence_ns_ / kAlivePerSilence;
    }
    if (!lost_ && (channel_.ended() || (!paused_ && now - heard_ns_ > silence_ns_))) {
      lost_ = true;
      end_ranks(SIGTERM);
    }
    if (!ranks_) return;
    // The launcher is gone, and the ranks did not end in time: the guard also finds what they started.
    if (lost_ && ranks_->kill_at_ns() != 0 && now >= ranks_->kill_at_ns()) return ranks_->leave_to_guard();
    ranks_->kill_late();
  }

  // When all ranks have ended: sends the rest of their output, then kDone. If the launcher takes no more bytes, the
  // rest waits until the launcher does, or gives no sign of life.
  void send_rest() {
    if (complete_ || running() || !(started_ || refused_)) return;
    for (RankOutput& output : outputs_) pass_on(output, kMaxUnsent);  // a pipe has less
    if (channel_.unsent() >= kMaxUnsent) return;
    complete_ = true;
    if (started_) channel_.send({.kind = AgentFrameKind::kDone});
  }

  const AgentOptions& options_;
  const JobSignals signals_;
  AgentChannel channel_;
  std::optional<AgentJob> job_;
  std::unique_ptr<RankProcesses> ranks_;  // null before the job is known
  std::optional<PortReservation> port_;
  std::vector<RankOutput> outputs_;
  std::int64_t silence_ns_ = kFirstSilenceNs, heard_ns_ = 0, next_alive_ns_ = 0;
  bool started_ = false, refused_ = false, paused_ = false, lost_ = false;
  bool complete_ = false;  // all ranks have ended, and the last frame is in the channel
};

}  // namespace

int run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace slip::transport
