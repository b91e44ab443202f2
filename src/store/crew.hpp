// A few threads that do one piece of work together with the thread that brings it, and sleep in between.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/thread.hpp"

namespace slip {

class Crew {
 public:
  // `work` runs once on every member, the caller of run() among them; it must not throw.
  Crew(const std::string& name, unsigned members, std::function<void(unsigned member)> work);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void run();  // returns when all have done it. One caller at a time
  unsigned members() const { return static_cast<unsigned>(threads_.size()) + 1; }

 private:
  void live(unsigned member);
  void end();

  std::function<void(unsigned)> work_;
  std::mutex mutex_;
  std::condition_variable begin_, end_;
  std::uint64_t round_ = 0;  // these four under mutex_
  std::size_t busy_ = 0;
  bool over_ = false;
  std::vector<Thread> threads_;
};

}  // namespace slip
