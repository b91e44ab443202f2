// ThreadGroup: some threads that do one piece of work together with the calling thread, and sleep in between. The
// weight reader uses it.
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

  void run();  // returns when all members have done the work. One caller at a time
  unsigned members() const { return static_cast<unsigned>(threads_.size()) + 1; }

 private:
  void serve(unsigned member);
  void stop();

  const std::function<void(unsigned)> work_;
  std::vector<Thread> threads_;  // constant after construction
  Mutex mutex_;
  CondVar begin_, end_;
  std::uint64_t round_ SLIP_GUARDED_BY(mutex_) = 0;  // calls of run()
  std::size_t busy_ SLIP_GUARDED_BY(mutex_) = 0;     // members that have not finished this round
  bool stopping_ SLIP_GUARDED_BY(mutex_) = false;
};

}  // namespace slip
