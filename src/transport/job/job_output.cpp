#include "transport/job/job_output.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/job/job_guard.hpp"

namespace slip::transport {
namespace {

std::size_t index_of(int stream) { return stream == STDERR_FILENO ? 1 : 0; }
int stream_of(std::size_t index) { return index == 1 ? STDERR_FILENO : STDOUT_FILENO; }

}  // namespace

OwnedDescriptor OutputPipe::add(std::vector<OutputPipe>& all, int rank, int stream) {
  Pipe pipe = make_pipe();
  ::fcntl(pipe.read.number(), F_SETFL, O_NONBLOCK);
  all.push_back({rank, stream, std::move(pipe.read)});
  return std::move(pipe.write);
}

std::string_view OutputPipe::read(std::span<char> into) {
  ssize_t count = -1;
  while (from.number() >= 0 && (count = ::read(from.number(), into.data(), into.size())) < 0 && errno == EINTR) {}
  if (count == 0) from.reset();
  return {into.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

JobOutput::JobOutput() {
  struct stat out {
  }, err{};
  one_file_ = ::fstat(STDOUT_FILENO, &out) == 0 && ::fstat(STDERR_FILENO, &err) == 0 && out.st_dev == err.st_dev &&
              out.st_ino == err.st_ino;
}

void JobOutput::add(int source, int stream, std::string_view bytes, const std::string& prefix) {
  LinePrefix& lines = lines_.try_emplace({source, stream}, prefix).first->second;
  waiting_[index_of(stream)] += lines.add(bytes);
}

void JobOutput::finish_line(int source) {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    if (const auto found = lines_.find({source, stream_of(i)}); found != lines_.end())
      waiting_[i] += found->second.finish();
  }
}

void JobOutput::watch(std::vector<pollfd>& watched) const {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    if (!waiting_[i].empty()) watched.push_back({stream_of(i), POLLOUT, 0});
  }
}

// The descriptors stay blocking, because other processes share them. A pipe that poll() reports as writable takes
// PIPE_BUF bytes without blocking.
void JobOutput::flush() {
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    std::string& text = waiting_[i];
    std::size_t written = 0;
    while (written < text.size() && !must_wait(i)) {
      pollfd ready{stream_of(i), POLLOUT, 0};
      if (::poll(&ready, 1, 0) <= 0) break;
      const ssize_t count =
          ::write(ready.fd, text.data() + written, std::min<std::size_t>(text.size() - written, PIPE_BUF));
      if (count > 0) written += static_cast<std::size_t>(count);
      else if (errno == EAGAIN) break;
      else if (errno != EINTR) written = text.size();  // no process reads it any more
    }
    if (written > 0) unfinished_ = text[written - 1] != '\n' ? std::optional(i) : std::nullopt;
    text.erase(0, written);
  }
}

}  // namespace slip::transport
