// Helpers for tests of the machinery: kernels made of functions, waits that end.
//
// Nothing here sleeps and nothing waits for ever: a test that would hang fails after kPatience.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "slip/device.hpp"
#include "support/gate.hpp"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SLIP_TEST_SANITIZED 1
#else
#define SLIP_TEST_SANITIZED 0
#endif

namespace slip::test {

inline constexpr bool kSanitized = SLIP_TEST_SANITIZED != 0;
inline constexpr std::chrono::seconds kPatience{30};

// Rounds of a loop that is long in a plain build.
inline constexpr int rounds(int plain) { return kSanitized ? plain / 10 + 1 : plain; }

// Polls until `ready` says yes; false when patience ends.
template <class Ready>
bool eventually(const Ready& ready) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!ready()) {
    if (std::chrono::steady_clock::now() > end) return false;
    sched_yield();
  }
  return true;
}

// Yields so many times, but not for long if the machine is busy: while another program runs, each yield takes
// milliseconds.
inline void yield_times(int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  for (int i = 0; i < count && std::chrono::steady_clock::now() < end; ++i) sched_yield();
}

inline bool finishes(StreamRef stream) { return stream.sync_for(kPatience); }

// The code that the call throws; kOk when it returns.
template <class Call>
ErrorCode code_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kOk;
}

// The text that the call throws; empty when it returns.
template <class Call>
std::string text_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Functions as kernels. Must outlive their launches: declare it before the device.
class Bodies {
 public:
  void launch(StreamRef stream, std::function<void()> body, Name name = {}, Here here = Here::at()) {
    bodies_.push_back(std::move(body));
    stream.launch(kernel(), {.scalars = {&bodies_.back()}, .name = name}, {}, here);
  }
  static const Kernel& kernel() {
    static const Kernel kCall{"call", [](const Args& args) { (*args.scalar<std::function<void()>*>(0))(); }, nullptr};
    return kCall;
  }

 private:
  std::deque<std::function<void()>> bodies_;
};

inline const Kernel& nothing() {
  static const Kernel kNothing{"nothing", [](const Args&) {}, nullptr};
  return kNothing;
}

// out(0) = scalar(0) in every element.
inline const Kernel& put() {
  static const Kernel kPut{"put",
                           [](const Args& args) {
                             for (int& element : args.out<int>(0)) element = args.scalar<int>(0);
                           },
                           nullptr};
  return kPut;
}

// out(0) = 3 * out(0) + scalar(0): the result depends on the order of launches.
inline const Kernel& mix() {
  static const Kernel kMix{"mix",
                           [](const Args& args) {
                             for (unsigned& element : args.out<unsigned>(0))
                               element = 3 * element + args.scalar<unsigned>(0);
                           },
                           nullptr};
  return kMix;
}

// Counts how many are inside at once.
class ConcurrencyCounter {
 public:
  void enter() {
    const int now = inside_.fetch_add(1) + 1;
    int max = max_.load();
    while (now > max && !max_.compare_exchange_weak(max, now)) {}
  }
  void leave() { inside_.fetch_sub(1); }
  int inside() const { return inside_.load(); }
  int max() const { return max_.load(); }

 private:
  std::atomic<int> inside_{0};
  std::atomic<int> max_{0};
};

}  // namespace slip::test
