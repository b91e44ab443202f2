// JobOutput: writes the output of ranks on other hosts to the standard output and error of the launcher. If the reader
// of that output stops reading, the launcher must still handle signals. So this class buffers the text and never
// blocks. While is_full(), the launcher reads no more from its hosts.
#pragma once

#include <poll.h>

#include <array>
#include <map>
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
  static constexpr std::size_t kMaxWaiting = std::size_t{1} << 20;

  bool other_is_within_line(std::size_t index) const;

  bool one_file_ = false;                            // the standard output and error go to the same pipe or terminal
  std::array<bool, 2> within_line_{};                // the last byte written was not the end of a line
  std::map<std::pair<int, int>, LinePrefix> lines_;  // by source and stream
  std::array<std::string, 2> waiting_;               // for the standard output and error
};

}  // namespace slip::transport
