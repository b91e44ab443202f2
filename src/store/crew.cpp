#include "store/crew.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip {

Crew::Crew(const std::string& name, unsigned members, std::function<void(unsigned)> work) : work_(std::move(work)) {
  const unsigned others = std::max(members, 1U) - 1;
  threads_.reserve(others);
  try {
    for (unsigned member = 1; member <= others; ++member) {
      Thread thread;
      thread.start(fmt::format("{}-{}", name, member), [this, member] { live(member); });
      threads_.push_back(thread);
    }
  } catch (...) {
    end();  // those that were started must not outlive us
    throw;
  }
}

Crew::~Crew() { end(); }

void Crew::end() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  begin_.notify_all();
  for (Thread& thread : threads_) thread.join();
}

void Crew::run() {
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    busy_ = threads_.size();
  }
  begin_.notify_all();
  work_(0);
  std::unique_lock lock(mutex_);
  end_.wait(lock, [this] { return busy_ == 0; });
}

void Crew::live(unsigned member) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [&] { return over_ || round_ != seen; });
    if (over_) return;
    seen = round_;
    lock.unlock();
    work_(member);
    lock.lock();
    if (--busy_ == 0) end_.notify_one();
  }
}

}  // namespace slip
