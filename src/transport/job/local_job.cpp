#include "transport/job/local_job.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "slip/unique_id.hpp"
#include "transport/bootstrap/rendezvous.hpp"
#include "transport/job/job_signals.hpp"
#include "transport/job/line_prefix.hpp"
#include "transport/job/rank_processes.hpp"

namespace slip::transport {
namespace {

// LineRelay: copies a pipe to a descriptor line by line and adds a prefix to each line.
class LineRelay {
 public:
  // `from` must be non-blocking.
  LineRelay(OwnedDescriptor from, int to, std::string prefix)
      : from_(std::move(from)), to_(to), lines_(std::move(prefix)) {}

  // Copies the bytes that have arrived; closes at the end of the pipe.
  void pump() {
    char bytes[16 << 10];
    while (descriptor() >= 0) {
      const ssize_t count = ::read(descriptor(), bytes, sizeof(bytes));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;  // no bytes have arrived
      if (count == 0) return close();
      put(lines_.add({bytes, static_cast<std::size_t>(count)}));
    }
  }
  // Copies the bytes that have arrived, including an unfinished line, and closes.
  void finish() {
    pump();
    close();
  }
  int descriptor() const { return from_.number(); }

 private:
  void close() {
    from_.reset();
    put(lines_.finish());
  }
  void put(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = ::write(to_, text.data(), text.size());
      if (count < 0 && errno != EINTR) return;  // no process reads it any more
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
  }

  OwnedDescriptor from_;
  int to_;
  LinePrefix lines_;
};

class Job : base::NoCopy {
 public:
  explicit Job(const LocalJob& job) : job_(job), ranks_(job.grace, signals_.before()) {
    id_ = UniqueIdParts{"unix:slip-launch-" + random_name(), 0, random_secret(), true}.id().text();
  }

  int run() {
    if (job_.timeout.count() > 0) timeout_at_ = base::deadline_after(std::chrono::nanoseconds(job_.timeout).count());
    for (int rank = 0; rank < job_.nranks && status_ == 0; ++rank) start(rank);
    if (status_ != 0) ranks_.end_all(SIGKILL);
    while (ranks_.any_running()) {
      wait();
      for (LineRelay& relay : relays_) relay.pump();
      while (const int number = signals_.next()) handle_signal(number);
      ranks_.reap([this](const RankExit& exit) {
        if (exit.status() != 0 && status_ == 0) first_failure(exit);
      });
      check_time();
    }
    for (LineRelay& relay : relays_) relay.finish();
    return status_ != 0 || interrupted_ == 0 ? status_ : kOfSignal + interrupted_;
  }

 private:
  void start(int rank) {
    RankProgram program{.command = job_.command,
                        .variables = RankVariables{rank, job_.nranks, rank, id_}.with(job_.changes),
                        .directory = job_.directory};
    OwnedDescriptor out, err;
    if (job_.tag_output) {
      program.out = (out = relay(rank, STDOUT_FILENO)).number();
      program.err = (err = relay(rank, STDERR_FILENO)).number();
    }
    const int error = ranks_.start(rank, program);
    if (error == 0) return;
    status_ = start_failure_status(error);
    base::log_line(fmt::format("cannot run '{}': {}", job_.command.front(), std::strerror(error)));
  }

  OwnedDescriptor relay(int rank, int to) {
    Pipe pipe = make_pipe();
    ::fcntl(pipe.read.number(), F_SETFL, O_NONBLOCK);
    relays_.emplace_back(std::move(pipe.read), to, fmt::format("[{}] ", rank));
    return std::move(pipe.write);
  }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    for (const LineRelay& one : relays_) watched.push_back({one.descriptor(), POLLIN, 0});
    const std::int64_t kill_at = ranks_.kill_at_ns();
    std::int64_t until = timeout_at_;
    if (kill_at != 0) until = until == 0 ? kill_at : std::min(until, kill_at);
    poll_until(watched, until);
  }

  void handle_signal(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) {
      ranks_.signal_all(SIGSTOP);
      ::raise(SIGSTOP);
      ranks_.signal_all(SIGCONT);
      return;
    }
    ranks_.end_all(interrupted_ == 0 ? number : SIGKILL);  // a second signal kills at once
    interrupted_ = number;
  }

  void first_failure(const RankExit& exit) {
    status_ = exit.status();
    const std::size_t others = ranks_.running().size() - 1;
    std::string text = fmt::format("rank {} {}", exit.rank, exit.text());
    if (others > 0) text += fmt::format("; ending the other {}", others);
    if (interrupted_ != 0) return;  // all ranks have been asked to end already
    base::log_line(text);
    ranks_.end_all(SIGTERM);
  }

  void check_time() {
    if (timeout_at_ != 0 && base::now_ns() >= timeout_at_) {
      timeout_at_ = 0;
      base::log_line(fmt::format("{} still running after {:g} s; ending the job", rank_list(ranks_.running()),
                                 static_cast<double>(job_.timeout.count()) / 1000));
      if (status_ == 0) status_ = kJobTimedOut;
      ranks_.end_all(SIGTERM);
    }
    if (const std::vector<int> late = ranks_.kill_late(); !late.empty())
      base::log_line(fmt::format("{} did not end when asked to; killing", rank_list(late)));
  }

  const LocalJob& job_;
  const JobSignals signals_;
  std::string id_;
  RankProcesses ranks_;
  std::vector<LineRelay> relays_;
  std::int64_t timeout_at_ = 0;  // 0: never
  int status_ = 0, interrupted_ = 0;
};

}  // namespace

int run_local_job(const LocalJob& job) { return Job(job).run(); }

}  // namespace slip::transport
