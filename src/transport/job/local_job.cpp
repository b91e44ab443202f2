#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/terminal.hpp"
#include "slip/unique_id.hpp"
#include "transport/bootstrap/rendezvous.hpp"
#include "transport/job/child_process.hpp"
#include "transport/job/job.hpp"
#include "transport/job/job_output.hpp"
#include "transport/job/rank_processes.hpp"

namespace slip::transport {
namespace {

constexpr std::size_t kPipeBytes = std::size_t{64} << 10;  // Linux's default capacity of a pipe

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
      // While the output is full, because its reader does not read, each rank waits in its own write.
      for (OutputPipe& pipe : pipes_) {
        if (!output_.is_full()) read(pipe);
      }
      output_.flush();
      while (const int number = signals_.next()) handle_signal(number);
      ranks_.reap([this](const RankExit& exit) {
        if (exit.status() != 0 && status_ == 0) first_failure(exit);
      });
      check_time();
    }
    write_rest();
    return status_ != 0 || interrupted_ == 0 ? status_ : kOfSignal + interrupted_;
  }

 private:
  void start(int rank) {
    ChildProgram program{.command = job_.command, .directory = job_.directory};
    OwnedDescriptor out, err;
    if (job_.tag_output) {
      program.out = (out = OutputPipe::add(pipes_, rank, STDOUT_FILENO)).number();
      program.err = (err = OutputPipe::add(pipes_, rank, STDERR_FILENO)).number();
    }
    const int error =
        ranks_.start(rank, rank_variables(rank, job_.nranks, rank, id_, job_.changes), std::move(program));
    if (error == 0) return;
    status_ = start_failure_status(error);
    base::log_line(fmt::format("cannot run '{}': {}", job_.command.front(), std::strerror(error)));
  }

  // Reads the bytes that have arrived, up to the capacity of a pipe.
  void read(OutputPipe& pipe) {
    char bytes[kPipeBytes];
    const std::string_view arrived = pipe.read(bytes);
    if (!arrived.empty()) output_.add(pipe.rank, pipe.stream, arrived, fmt::format("[{}] ", pipe.rank));
  }

  // All ranks have ended: writes the rest of their output, including unfinished lines. What a rank wrote before it
  // ended fits into a pipe; later bytes of processes that it has left behind are lost. If the reader of the output does
  // not read, this waits until a signal arrives; after a signal it does not wait.
  void write_rest() {
    for (OutputPipe& pipe : pipes_) read(pipe);
    for (int rank = 0; rank < job_.nranks; ++rank) output_.finish_line(rank);
    output_.flush();
    for (bool stop = interrupted_ != 0; !stop && !output_.is_empty(); output_.flush()) {
      std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
      output_.watch(watched);
      poll_until(watched, 0);
      while (const int number = signals_.next()) stop = stop || number != SIGCHLD;
    }
  }

  void wait() const {
    std::vector<pollfd> watched{{signals_.descriptor(), POLLIN, 0}};
    ranks_.watch(watched);
    for (const OutputPipe& pipe : pipes_) {
      if (!output_.is_full()) watched.push_back({pipe.from.number(), POLLIN, 0});
    }
    output_.watch(watched);
    const std::int64_t kill_at = ranks_.kill_at_ns();
    std::int64_t until = timeout_at_;
    if (kill_at != 0) until = until == 0 ? kill_at : std::min(until, kill_at);
    poll_until(watched, until);
  }

  void handle_signal(int number) {
    if (number == SIGCHLD) return;
    if (number == SIGTSTP) return pause();
    ranks_.end_all(interrupted_ == 0 ? number : SIGKILL);  // a second signal kills at once
    interrupted_ = number;
  }

  // Ctrl-Z: the ranks stop before this process does, and continue with it. The time in between counts for no limit.
  void pause() {
    const std::int64_t begun = base::now_ns();
    ranks_.pause();
    ::raise(SIGSTOP);
    if (timeout_at_ != 0) timeout_at_ += base::now_ns() - begun;
    ranks_.resume();
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
  std::vector<OutputPipe> pipes_;  // with tag_output: two for each rank
  JobOutput output_;
  std::int64_t timeout_at_ = 0;  // 0: never
  int status_ = 0, interrupted_ = 0;
};

}  // namespace

int run_local_job(const LocalJob& job) { return Job(job).run(); }

}  // namespace slip::transport
