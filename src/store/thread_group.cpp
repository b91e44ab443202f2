#include "store/thread_group.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip {

ThreadGroup::ThreadGroup(const std::string& name, unsigned members, std::function<void(unsigned)> work)
    : work_(std::move(work)) {
  const unsigned others = std::max(members, 1U) - 1;
  threads_.reserve(others);
  try {
    for (unsigned member = 1; member <= others; ++member) {
      Thread thread;
      thread.start(fmt::format("{}-{}", name, member), [this, member] { serve(member); });
      threads_.push_back(thread);
    }
  } catch (...) {
    stop();  // end the threads that were started: they use this object
    throw;
  }
}

ThreadGroup::~ThreadGroup() { stop(); }

void ThreadGroup::stop() {
  {
    const LockGuard lock(mutex_);
    stopping_ = true;
  }
  begin_.notify_all();
  for (Thread& thread : threads_) thread.join();
}

void ThreadGroup::run() {
  {
    const LockGuard lock(mutex_);
    ++round_;
    busy_ = threads_.size();
  }
  begin_.notify_all();
  work_(0);
  const LockGuard lock(mutex_);
  while (busy_ != 0) end_.wait(mutex_);
}

void ThreadGroup::serve(unsigned member) {
  for (std::uint64_t seen = 0;;) {
    {
      const LockGuard lock(mutex_);
      while (!stopping_ && round_ == seen) begin_.wait(mutex_);
      if (stopping_) return;
      seen = round_;
    }
    work_(member);
    const LockGuard lock(mutex_);
    if (--busy_ == 0) end_.notify_one();
  }
}

}  // namespace slip
