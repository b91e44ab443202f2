// Threads: starting and joining them, how many cores there are, and who "this thread" is.
#pragma once

#include <pthread.h>

#include <cstdint>
#include <functional>
#include <string>

namespace slip {

int core_count();  // cores that this process may use

inline thread_local constinit std::uint64_t t_thread_index = 0;
std::uint64_t make_thread_index();

// 1, 2, 3, ... in the order in which threads first ask; never used again.
inline std::uint64_t thread_index() {
  if (t_thread_index == 0) [[unlikely]]
    t_thread_index = make_thread_index();
  return t_thread_index;
}

// A thread that is joined by hand, or detached: destroying it as neither leaves it running, which is what exit and fork
// need, and its stack allocated.
class Thread {
 public:
  Thread() = default;
  // `precise`: timed sleeps of this thread end on time, not rounded up by the kernel's 50 us slack.
  void start(const std::string& name, std::function<void()> body, bool precise = false);
  void join();
  void detach();  // it ends by itself, and nobody waits for it
  bool started() const { return started_; }

 private:
  pthread_t handle_{};
  bool started_ = false;
};

// Of the calling thread. Short: it wants the core for a moment at a time, and so, when it is woken, gets it at once
// from threads whose turns are longer, which would else keep it for some milliseconds. Linux 6.12 on; before, nothing
// changes.
enum class Turns { kUsual, kShort };
void set_turns(Turns turns);

// Called around fork(): before it in the parent, after it in the parent and in the child.
void at_fork(void (*before)(), void (*in_parent)(), void (*in_child)());

}  // namespace slip
