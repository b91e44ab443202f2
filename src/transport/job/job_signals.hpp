// JobSignals: the signals that a launcher handles while its job runs, read from a signalfd. Meanwhile they are blocked
// in this process. Use it in the main thread of a program without other threads.
#pragma once

#include <signal.h>

#include "base/sync.hpp"
#include "transport/socket/abort_flag.hpp"

namespace slip::transport {

class JobSignals : base::NoCopy {
 public:
  JobSignals();  // throws kIo
  ~JobSignals();

  int next() const;  // 0: no signal is pending
  int descriptor() const { return descriptor_.number(); }
  const sigset_t& before() const { return before_; }  // the mask for child processes

 private:
  sigset_t before_{};
  OwnedDescriptor descriptor_;
};

}  // namespace slip::transport
