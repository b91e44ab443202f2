// The main loop of a fuzzer: tries one seed after another for some seconds. Each input is made from its seed alone, and
// the seed is printed if it fails. An alarm ends hangs and names the seed. Memory is limited, so that a small input
// that takes much memory fails.
#pragma once

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

namespace slip {

inline constexpr unsigned kInputSeconds = 20;  // for one input; a millisecond is usual
inline constexpr std::size_t kMaxGrowth = std::size_t{256} << 20;
inline char g_now[64] = "no input";

inline void on_alarm(int) {
  [[maybe_unused]] ssize_t written = write(2, g_now, std::strlen(g_now));
  written = write(2, " hangs\n", 7);
  _exit(1);
}

// The size of the data segment so far, in bytes. Some systems include memory that allocators reserve for threads.
inline std::size_t data_now() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::size_t kilobytes = 0;
    if (word == "VmData:" && status >> kilobytes) return kilobytes << 10;
  }
  return 0;
}

// Limits the memory that may be taken from now on, plus the stacks of the threads that devices start for each core. Not
// under sanitizers, which reserve terabytes.
inline void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  ::mallopt(M_ARENA_MAX, 1);  // no more reserves for threads
  constexpr std::size_t kStack = std::size_t{8} << 20;
  const std::size_t threads = 8 + 2 * std::size_t{std::thread::hardware_concurrency()};
  const rlimit max{data_now() + kMaxGrowth + threads * kStack, RLIM_INFINITY};
  ::setrlimit(RLIMIT_DATA, &max);
#endif
}

// Tries the input of a seed and stores it in `input`. True: the input was accepted; false: it was refused, as it should
// be. Throws if something is wrong.
using FuzzOne = std::function<bool(std::uint64_t seed, std::string& input)>;

// arguments: SECONDS SEED
inline int fuzz_main(int argc, char** argv, const char* name, const FuzzOne& one) {
  std::signal(SIGALRM, on_alarm);
  const double seconds = argc > 1 ? std::atof(argv[1]) : 5;
  const std::uint64_t first = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  fmt::print("{}: {} seconds from seed {}\n", name, seconds, first);
  std::fflush(stdout);
  limit_memory();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t accepted = 0, refused = 0, seed = first;
  int status = 0;
  do {
    std::snprintf(g_now, sizeof(g_now), "%s 0 %llu", name, static_cast<unsigned long long>(seed));
    alarm(kInputSeconds);
    std::string input;
    try {
      ++(one(seed, input) ? accepted : refused);
    } catch (const std::exception& error) {
      fmt::print(stderr, "seed {}: {}\n{}\n", seed, error.what(), input.substr(0, 20'000));
      status = 1;
      break;
    }
    ++seed;
  } while (std::chrono::steady_clock::now() < end);
  alarm(0);
  fmt::print("seeds {} to {}: {} files were read, {} refused\n", first, seed, accepted, refused);
  const bool one_seed = seconds <= 0;  // a failure tried again is of one kind only
  return status != 0 || (!one_seed && (accepted == 0 || refused == 0)) ? 1 : 0;
}

}  // namespace slip
