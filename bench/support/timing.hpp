// Small tools for code being measured: a steady clock, an optimiser fence and the resident set size.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

namespace slip::bench {

class Timer {
 public:
  Timer() : start_(Clock::now()) {}

  void restart() { start_ = Clock::now(); }

  double elapsed_ns() const { return std::chrono::duration<double, std::nano>(Clock::now() - start_).count(); }

  double elapsed_s() const { return elapsed_ns() * 1e-9; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_;
};

// Passing the address (not the value) works for any type, and the memory clobber also keeps the stores
// that produced the value from being dropped.
template <class T>
inline void do_not_optimize(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

inline void clobber_memory() { asm volatile("" : : : "memory"); }

// Resident set of this process; empty where /proc is not there.
std::optional<std::uint64_t> current_rss_bytes();

}  // namespace slip::bench
