// ThreadGroup: threads that run one function together with the calling thread, and sleep between two runs. BlockReader
// uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/sync.hpp"
#include "base/thread.hpp"

namespace slip {

class ThreadGroup {
 public:
  // `work` runs once on every member; the caller of run() is member 0. It must not throw.
  ThreadGroup(const std::string& name, unsigned members, std::function<void(unsigned member)> work);
  ~ThreadGroup();
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void run();  // returns when `work` has returned on all members; one caller at a time
  unsigned members() const { return static_cast<unsigned>(threads_.size()) + 1; }

 private:
  void serve(unsigned member);
  void stop();

  const std::function<void(unsigned)> work_;
  std::vector<Thread> threads_;  // constant after construction
  Mutex mutex_;
  CondVar begin_, end_;
  std::uint64_t round_ SLIP_GUARDED_BY(mutex_) = 0;  // number of calls of run()
  std::size_t busy_ SLIP_GUARDED_BY(mutex_) = 0;     // members that have not finished this round
  bool stopping_ SLIP_GUARDED_BY(mutex_) = false;
};

}  // namespace slip
