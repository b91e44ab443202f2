// Helpers for measured code: a steady clock, a barrier for the optimiser, and the resident set size.
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

// Makes the compiler compute the value. It passes the address, which works for any type. The memory clobber keeps the
// stores that produced the value.
template <class T>
inline void do_not_optimize(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

inline void clobber_memory() { asm volatile("" : : : "memory"); }

// The resident set of this process, in bytes. Empty without /proc.
std::optional<std::uint64_t> current_rss_bytes();

}  // namespace slip::bench
