// JobOutput: writes the output of ranks on other hosts to the standard output and error of the launcher. If the reader
// of that output stops reading, the launcher must still handle signals. So this class buffers the text and never
// blocks. While is_full(), the launcher reads no more from its hosts.
#pragma once

#include <poll.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/job/line_prefix.hpp"

namespace slip::transport {

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
