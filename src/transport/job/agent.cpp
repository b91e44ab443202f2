#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/fail.hpp"
#include "base/quantity_text.hpp"
#include "transport/job/agent_channel.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/job.hpp"
#include "transport/job/job_output.hpp"
#include "transport/job/rank_processes.hpp"
#include "transport/socket/abort_flag.hpp"
#include "transport/socket/address.hpp"
#include "transport/socket/socket.hpp"

namespace slip::transport {
namespace {

// The address of this host that the other hosts use. With a `rule` (SLIP_SOCKET_IFNAME): the address of an interface
// that it accepts. Without: the first address of `preferred` (separated by commas) that an interface of this host has;
// otherwise own_address().
// Throws kInvalidValue if no interface matches the rule.
SocketAddress rendezvous_address(const std::string& rule, const std::string& preferred) {
  const InterfaceFilter filter(rule);
  if (!filter.empty()) return own_address(filter);
  const std::vector<Interface> interfaces = list_interfaces();
  for (const std::string_view wanted : base::split(preferred, ",")) {
    const auto found = std::ranges::find_if(interfaces, [&](const Interface& one) {
      return one.address.host() == wanted && !one.address.is_loopback() && !one.address.is_link_local();
    });
    if (found != interfaces.end()) return found->address;
  }
  return own_address({});
}

// Holds a free port without listening at it. Rank 0 can still listen there, because both sockets have SO_REUSEADDR. The
// kernel gives the port to no socket that asks for any free port. A listener that takes a port of SLIP_PORTS uses this
// one only if no other port of the range is free.
class PortReservation {
 public:
  // Throws kIo. bind() without SO_REUSEADDR takes only a port that no other socket has. SO_REUSEADDR is set afterwards,
  // so that rank 0 can listen at the port.
  PortReservation(const SocketAddress& address, const base::PortRange& ports) {
    const auto reserve = [&](std::uint16_t port) {
      const SocketAddress wanted = address.with_port(port);
      socket_.reset(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
      return socket_.number() >= 0 && ::bind(socket_.number(), wanted.data(), wanted.bytes()) == 0 ? 0 : errno;
    };
    const std::string what = "cannot reserve a port at " + address.host();
    const int error = ports.first == 0 ? reserve(0) : try_ports(ports, reserve);
    if (error != 0) fail_ports(ports, what, error);
    const int on = 1;
    sockaddr_storage chosen{};
    socklen_t bytes = sizeof(chosen);
    if (::setsockopt(socket_.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        ::getsockname(socket_.number(), reinterpret_cast<sockaddr*>(&chosen), &bytes) != 0)
      base::fail(ErrorCode::kIo, {}, "{}: {}", what, std::strerror(errno));
    address_ = SocketAddress(reinterpret_cast<const sockaddr*>(&chosen), bytes);
  }
  const SocketAddress& address() const { return address_; }

 private:
  OwnedDescriptor socket_;
  SocketAddress address_;
};

constexpr std::int64_t kFirstSilenceNs = 60'000'000'000;  // limit for silence until kJob names the job's own
constexpr std::size_t kMaxUnsent = std::size_t{1} << 20;  // with more unsent bytes, no output of ranks is read
constexpr std::size_t kPiece = std::size_t{32} << 10;     // max bytes of output in one frame

// Reads the two ends of the ssh connection from SSH_CONNECTION: "client port server port".
void read_connection(AgentHello& hello) {
  std::istringstream words(base::env_text("SSH_CONNECTION"));
  std::string port;
  words >> hello.from_host >> port >> hello.own_host;
}

// Moves the standard input or output to a new descriptor and puts /dev/null in its place. Otherwise a rank would
// inherit the connection and could read or write its frames.
OwnedDescriptor take_standard(int number, int flags) {
  OwnedDescriptor taken(::fcntl(number, F_DUPFD_CLOEXEC, 3));
  const OwnedDescriptor nothing(::open("/dev/null", flags | O_CLOEXEC));
  if (taken.number() < 0 || nothing.number() < 0)
    base::fail(ErrorCode::kIo, {},
               "the agent cannot take its standard input and output: {}; only slip launch can start `slip agent`",
               std::strerror(errno));
  ::dup2(nothing.number(), number);
  return taken;
}

// `slip agent`: runs the ranks of one host for the launcher. It handles the launcher's frames (agent_channel.hpp), and
// sends the output and the exits of the ranks. If the launcher is lost, it ends the ranks. One thread.
class Agent : base::NoCopy {
 public:
  explicit Agent(const AgentOptions& options)
      : options_(options),
        channel_(AgentChannel::Side::kAgent, take_standard(STDIN_FILENO, O_RDONLY),
                 take_standard(STDOUT_FILENO, O_WRONLY)) {
    // Without this, a write to a closed connection would end this process before it has ended its ranks.
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
    while (!is_over()) {
      wait();
      channel_.pump();
      while (std::optional<AgentFrame> frame = channel_.next()) handle(*frame);
      for (OutputPipe& output : outputs_) send_output(output, kPiece);
      while (const int number = signals_.next()) handle_signal(number);
      if (ranks_) ranks_->reap([this](const RankExit& exit) { report(exit); });
      check_time();
      send_rest();
      channel_.flush();
    }
    // A rank that ended may have left processes behind. Without a launcher, only the guard can end them.
    if (lost_ && ranks_) ranks_->leave_to_guard();
    return lost_ ? 1 : 0;
  }

 private:
  bool running() const { return ranks_ && ranks_->any_running(); }
  bool is_over() const { return !running() && (lost_ || (complete_ && channel_.unsent() == 0)); }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    if (ranks_) ranks_->watch(watched);
    if (!channel_.ended()) watched.push_back({channel_.in(), POLLIN, 0});
    if (channel_.unsent() > 0) watched.push_back({channel_.out(), POLLOUT, 0});
    for (const OutputPipe& output : outputs_) {
      if (channel_.unsent() < kMaxUnsent) watched.push_back({output.from.number(), POLLIN, 0});
    }
    std::int64_t until = std::min(next_heartbeat_ns_, paused_ ? next_heartbeat_ns_ : heard_ns_ + silence_ns_);
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
        if (ranks_ && paused_) ranks_->pause();
        if (ranks_ && !paused_) ranks_->resume();
        return;
      default: return;
    }
  }

  // Checks what may prevent the job on this host, while no rank of the job has started yet on any host.
  void accept(const std::string& body) {
    job_ = AgentJob::parse(body);
    if (!job_) return refuse(fmt::format("its agent cannot read the description of the job ({} bytes)", body.size()));
    silence_ns_ = job_->silence_ns;
    next_heartbeat_ns_ = 0;  // send one now: the time of the next one was set with kFirstSilenceNs
    std::error_code error;
    if (!std::filesystem::is_directory(job_->directory, error))
      return refuse(
          fmt::format("there is no folder '{}' to run the program in: make it, or give another one with --workdir",
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
    if (!job_) return refuse("its agent got kReserve before kJob");
    std::string rule = variable("SLIP_SOCKET_IFNAME");
    if (rule.empty()) rule = variable("NCCL_SOCKET_IFNAME");
    try {
      // SLIP_PORTS comes from the job's variables first: the environment of this process may lack it.
      port_.emplace(rendezvous_address(rule, preferred), base::parse_ports(variable("SLIP_PORTS")));
    } catch (const Error& failure) {
      return refuse(base::bare_text(failure));
    }
    channel_.send(
        {.kind = AgentFrameKind::kAddress, .value = port_->address().port(), .body = port_->address().host()});
  }

  void start(const std::string& id) {
    if (!ranks_) return refuse("its agent got kStart before kJob");
    started_ = true;
    add_own_folder();
    for (std::size_t i = 0; i < job_->ranks.size(); ++i) {
      const int rank = job_->ranks[i];
      ChildProgram program{.command = job_->command, .directory = job_->directory};
      const OwnedDescriptor out = OutputPipe::add(outputs_, rank, STDOUT_FILENO);
      const OwnedDescriptor err = OutputPipe::add(outputs_, rank, STDERR_FILENO);
      program.out = out.number();
      program.err = err.number();
      EnvChanges variables = rank_variables(rank, job_->nranks, static_cast<int>(i), id, job_->variables);
      if (const int error = ranks_->start(rank, std::move(variables), std::move(program)); error != 0) {
        channel_.send({.kind = AgentFrameKind::kNotStarted, .rank = rank, .value = error});
        return end_ranks(SIGKILL);
      }
    }
  }

  // Appends the folder of this program to the PATH of the ranks, so that they find slip without an installation.
  void add_own_folder() {
    std::error_code error;
    const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return;
    const std::string path = variable("PATH");
    // Without the condition, the PATH would begin with an empty entry, which is the current directory.
    job_->variables["PATH"] = path + (path.empty() ? "" : ":") + own.parent_path().string();
  }

  // Sends up to `limit` bytes of output, and closes the pipe at its end. If the launcher takes no more bytes, the
  // output stays in the pipe, and the rank blocks when it writes more.
  void send_output(OutputPipe& output, std::size_t limit) {
    char bytes[kPiece];
    for (std::size_t sent = 0; sent < limit && channel_.unsent() < kMaxUnsent;) {
      const std::string_view piece = output.read(std::span(bytes).first(std::min(kPiece, limit - sent)));
      if (piece.empty()) return;
      sent += piece.size();
      channel_.send(
          {.kind = AgentFrameKind::kOutput, .rank = output.rank, .value = output.stream, .body = std::string(piece)});
    }
  }

  void report(const RankExit& exit) {
    channel_.send({.kind = AgentFrameKind::kExit, .rank = exit.rank, .value = exit.value, .exited = exit.exited});
  }

  void end_ranks(int number) {
    if (!started_) refused_ = true;  // without ranks, the agent has nothing left to do and exits
    if (ranks_) ranks_->end_all(number);
  }

  // Handles a signal that a user sent to the agent itself.
  void handle_signal(int number) {
    if (number != SIGCHLD && number != SIGTSTP) end_ranks(number);
  }

  void check_time() {
    const std::int64_t now = base::now_ns();
    if (now >= next_heartbeat_ns_) {
      channel_.send({.kind = AgentFrameKind::kAlive});
      next_heartbeat_ns_ = now + silence_ns_ / kHeartbeatsPerSilence;
    }
    if (!lost_ && (channel_.ended() || (!paused_ && now - heard_ns_ > silence_ns_))) {
      lost_ = true;
      end_ranks(SIGTERM);
    }
    if (!ranks_) return;
    // The launcher is gone, and the ranks did not end in time. The guard also kills the processes that they started.
    if (lost_ && ranks_->kill_at_ns() != 0 && now >= ranks_->kill_at_ns()) return ranks_->leave_to_guard();
    ranks_->kill_late();
  }

  // When all ranks have ended: sends the rest of their output, then kDone. If the launcher takes no more bytes, a later
  // call continues, until the launcher is lost.
  void send_rest() {
    if (complete_ || running() || !(started_ || refused_)) return;
    for (OutputPipe& output : outputs_) send_output(output, kMaxUnsent);  // more than a pipe holds
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
  std::vector<OutputPipe> outputs_;
  std::int64_t silence_ns_ = kFirstSilenceNs, heard_ns_ = 0, next_heartbeat_ns_ = 0;
  // started_: kStart was handled. refused_: the job does not run here. lost_: the launcher is gone.
  // complete_: all ranks have ended, and the last frame is in the channel.
  bool started_ = false, refused_ = false, paused_ = false, lost_ = false, complete_ = false;
};

}  // namespace

int run_agent(const AgentOptions& options) { return Agent(options).run(); }

}  // namespace slip::transport
