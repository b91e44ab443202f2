// Team: the threads that run a parallel loop, one team per process. The calling thread and the helper threads (one for
// each core but one, started by the first loop) share the indices of the loop.
//
// Threads claim the indices one by one, so a core that is busy with other work delays no more than one index. Only one
// loop at a time has the helpers. A second loop, from another thread or nested in the first, runs on its calling thread
// alone. Between loops the helpers spin for some microseconds and then sleep.
//
// Small background work (for_each_background_piece) is done by the threads of a running loop between two indices. A
// separate thread would preempt a helper in the middle of an index for a whole scheduler slice. The loop would wait for
// that index.
//
// After fork() the child starts its own helpers. The team is never destroyed: the helpers end with the process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace slip::base {

namespace detail {

struct Loop {
  std::size_t count = 0;
  void* body = nullptr;
  void (*call)(void* body, std::size_t index) = nullptr;
};
void run_loop(const Loop& loop, bool background);

template <class Body>
Loop loop_of(std::size_t count, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  const auto call = [](void* of, std::size_t index) { (*static_cast<Plain*>(of))(index); };
  return {count, const_cast<void*>(static_cast<const void*>(std::addressof(body))), call};
}

}  // namespace detail

// Calls body(index) once for each index below `count` and returns when all calls have returned. If a call throws,
// indices that have not begun are skipped, and the first exception is thrown here.
template <class Body>
void for_each_index(std::size_t count, Body&& body) {
  detail::run_loop(detail::loop_of(count, body), false);
}

// The same for runs of neighbouring indices: calls body(begin, end) for [0, run), [run, 2 * run) and so on.
template <class Body>
void for_each_run(std::size_t count, std::size_t run, const Body& body) {
  for_each_index((count + run - 1) / run,
                 [&](std::size_t index) { body(index * run, std::min((index + 1) * run, count)); });
}

// for_each_index for small pieces of background work, for example copies of 256 KiB. While a loop runs, its threads do
// some pieces after each index, and the calling thread sleeps. Otherwise the helpers and the calling thread do the
// pieces.
template <class Body>
void for_each_background_piece(std::size_t count, Body&& body) {
  detail::run_loop(detail::loop_of(count, body), true);
}

// True: a loop uses all cores, so a spinning thread would slow it down. Only a hint.
bool team_is_busy();

}  // namespace slip::base
