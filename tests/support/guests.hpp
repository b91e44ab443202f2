// Guests: who has come to a Meeting. Plain words, so that the kernel of a GPU can be one of them.
//
// Each guest has a word of its own, written once: a GPU's atomic operations on host memory are not atomic for the host,
// so that no word may be counted up by both.
#pragma once

#include <atomic>
#include <cstdint>

namespace slip::test {

struct Guests {
  static constexpr int kMax = 12;

  std::uint32_t came[kMax];  // 1: this guest is here
  std::uint32_t missed;      // 1: somebody waited in vain
  int expected;
  std::atomic<int> places;  // given out; the host's only, also for kernels, whose place is taken at the launch
};

}  // namespace slip::test
