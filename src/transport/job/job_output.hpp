// JobOutput: the output of ranks on other hosts, written to the standard output and error of the launcher. A reader
// that stops reading must not stop the launcher, which has to handle signals: so the text waits here, and is_full()
// tells the launcher to read no more from its hosts.
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
  // `stream`: 1 or 2. `source`: the rank, or something else that writes lines. The prefix counts at its first bytes.
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
