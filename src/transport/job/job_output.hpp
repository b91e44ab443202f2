// OutputPipe: receives the output of a rank on this host.
//
// JobOutput: writes the output of ranks on other hosts to the standard output and error of the launcher. If the reader
// of that output stops reading, the launcher must still handle signals. So this class buffers the text and never
// blocks. While is_full(), the launcher reads no more from its hosts.
#pragma once

#include <poll.h>

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

// The read end of a pipe into which a rank writes its standard output or error.
struct OutputPipe {
  int rank = 0;
  int stream = 0;        // STDOUT_FILENO or STDERR_FILENO
  OwnedDescriptor from;  // non-blocking; none after the end of the pipe

  // Makes a pipe and adds its read end to `all`. Returns the end to which the rank writes. Throws kIo.
  static OwnedDescriptor add(std::vector<OutputPipe>& all, int rank, int stream);
  // Reads bytes that have arrived into the buffer and returns them; none: no bytes have arrived, or the pipe has ended.
  std::string_view read(std::span<char> into);
};

// LinePrefix: divides the output of a rank into lines and puts a prefix before each, so that lines of different ranks
// do not mix. With an empty prefix the bytes pass unchanged and at once, because progress bars write parts of lines.
class LinePrefix {
 public:
  explicit LinePrefix(std::string prefix = {}) : prefix_(std::move(prefix)) {}

  // The lines that these bytes complete.
  std::string add(std::string_view bytes) {
    if (prefix_.empty()) return std::string(bytes);
    std::string lines;
    for (std::size_t end = 0; (end = bytes.find('\n')) != std::string_view::npos; bytes.remove_prefix(end + 1))
      lines += prefix_ + std::exchange(pending_, {}) + std::string(bytes.substr(0, end + 1));
    pending_ += bytes;
    if (pending_.size() > kMaxLine) lines += finish();
    return lines;
  }
  // The last line, if the output ended without a newline.
  std::string finish() { return pending_.empty() ? std::string() : prefix_ + std::exchange(pending_, {}) + "\n"; }

 private:
  static constexpr std::size_t kMaxLine = std::size_t{64} << 10;  // longer lines are split, to limit the memory

  const std::string prefix_;
  std::string pending_;
};

class JobOutput {
 public:
  JobOutput();
  // `source`: a number for the writer of the text: a rank, a host or the launcher. `stream`: 1 or 2. The prefix is the
  // one of the first call for this source and stream.
  void add(int source, int stream, std::string_view bytes, const std::string& prefix);
  void finish_line(int source);  // the source has ended: its last line may have no newline

  void watch(std::vector<pollfd>& watched) const;
  void flush();  // writes what the descriptors take without waiting
  bool is_empty() const { return waiting_[0].empty() && waiting_[1].empty(); }
  bool is_full() const { return waiting_[0].size() + waiting_[1].size() > kMaxWaiting; }

 private:
  static constexpr std::size_t kMaxWaiting = std::size_t{1} << 20;  // bytes

  // True: both streams go to the same file, and the other one has written the beginning of a line and has more text. If
  // this stream wrote now, it would split that line. At most one stream is unfinished, so the two never wait for each
  // other.
  bool must_wait(std::size_t index) const {
    return one_file_ && unfinished_ && *unfinished_ != index && !waiting_[*unfinished_].empty();
  }

  bool one_file_ = false;                            // the standard output and error go to the same pipe or terminal
  std::optional<std::size_t> unfinished_;            // the stream that wrote last, if it wrote a part of a line
  std::map<std::pair<int, int>, LinePrefix> lines_;  // by source and stream
  std::array<std::string, 2> waiting_;               // for the standard output and error
};

}  // namespace slip::transport
