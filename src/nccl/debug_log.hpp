// DebugLog: writes the lines of NCCL_DEBUG to stderr, or to the file that NCCL_DEBUG_FILE names.
#pragma once

#include <string>
#include <string_view>

#include "base/sync.hpp"

namespace slip::nccl {

// The file name with %h replaced by the host's name up to its first dot, %p by the process id and %% by a percent sign.
// Other letters after a percent sign stay as they are.
std::string debug_file_name(std::string_view pattern, std::string_view host, int pid);

class DebugLog {
 public:
  // Appends a line. The first call, and the first one after reset(), opens the file anew. If it cannot be opened, lines
  // go to stderr. Any thread may call it.
  void write(std::string_view text);
  void reset();

 private:
  void open() SLIP_REQUIRES(mutex_);
  base::Mutex mutex_;
  bool opened_ SLIP_GUARDED_BY(mutex_) = false;
  int file_ SLIP_GUARDED_BY(mutex_) = -1;  // a descriptor; -1: stderr
  std::string prefix_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::nccl
