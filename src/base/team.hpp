// Team: the cores that a loop spreads over. One for the process, whose helpers (a thread for each core but one) start
// at the first loop.
//
// The indices of a loop are claimed one by one, so a core that is busy with something else, a copy say, holds up no
// more than the index it has. One loop at a time has the helpers; a loop that finds them taken, from another thread or
// from within a loop, runs on its own thread alone. Between loops helpers spin for some microseconds and then sleep.
//
// Small work that should hold up no loop, a copy in the background say, is done between the indices of loops by the
// threads that run them: a thread of its own would take a core away in the middle of an index for a whole time slice,
// and the loop would wait for that index.
//
// After fork the child starts helpers of its own. Helpers end with the process; they touch nothing but the team, which
// is never destroyed.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>

namespace slip {

// Calls body(index) once for each index below `count` and returns when all are done. A body that throws ends the loop:
// indices not yet begun are left out, and the first exception is thrown here.
template <class Body>
void for_each_index(std::size_t count, Body&& body);

// The same for small pieces of work in the background: the threads of a running loop do some after each index, the
// helpers while none runs; the caller sleeps.
template <class Body>
void for_each_between(std::size_t count, Body&& body);

// A hint: a loop has all cores, and whoever spins takes one of them away.
bool team_is_busy();

namespace detail {

struct Loop {
  std::size_t count = 0;
  void* body = nullptr;
  void (*call)(void* body, std::size_t index) = nullptr;
};
void run_loop(const Loop& loop);
void run_between(const Loop& loop);

template <class Body>
Loop loop_of(std::size_t count, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  const auto call = [](void* of, std::size_t index) { (*static_cast<Plain*>(of))(index); };
  return {count, const_cast<void*>(static_cast<const void*>(std::addressof(body))), call};
}

}  // namespace detail

template <class Body>
void for_each_index(std::size_t count, Body&& body) {
  detail::run_loop(detail::loop_of(count, body));
}

template <class Body>
void for_each_between(std::size_t count, Body&& body) {
  detail::run_between(detail::loop_of(count, body));
}

}  // namespace slip
