// The kernels of the tests, and Trail, which shows in which order ops ran.
//
// Each kernel has a function for the devices that run on the host; one for another kind of device is added here, once.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "slip/device.hpp"

namespace slip::test {

const Kernel& store_kernel();  // out(0)[i] = scalar(0)
const Kernel& mix_kernel();    // out(0)[i] = mixed(out(0)[i], scalar(0))
const Kernel& add_kernel();    // out(0)[i] = in(0)[i] + scalar(0)
const Kernel& fail_kernel();   // throws std::runtime_error("on purpose")
const Kernel& fault_kernel();  // throws DeviceFault("illegal address 0xdead")
const Kernel& meet_kernel();   // waits until the others of its Meeting (scalar 0) have come

// Not commutative: another order gives another value.
constexpr std::uint32_t mixed(std::uint32_t state, std::uint32_t value) {
  state = (state ^ value) * 0x9e3779b1u;
  return state ^ (state >> 15);
}

// Ops that leave a number each in device memory; the result tells their order.
class Trail {
 public:
  explicit Trail(const Device& device);

  void leave(StreamRef stream, std::uint32_t number, const Cost& cost = {}) const;
  Range range() const { return word_; }
  // Waits for all work of the device first.
  testing::AssertionResult is(std::initializer_list<std::uint32_t> numbers) const;

 private:
  Device device_;
  Buffer word_;
};

// Kernels, or other functions, that wait for each other; all return soon if one does not come.
class Meeting {
 public:
  explicit Meeting(int expected) : expected_(expected) {}
  // Marks the caller's arrival and waits for the others.
  void meet();
  void arrive() { arrived_.fetch_add(1); }
  bool complete() const { return arrived_.load() >= expected_ && !missed_.load(); }
  // A kernel in `stream` that comes to this meeting.
  void launch(StreamRef stream) { stream.launch(meet_kernel(), {.scalars = {this}}); }

 private:
  const int expected_;
  std::atomic<int> arrived_{0};
  std::atomic<bool> missed_{false};
};

// Words of host memory and of the device.
std::vector<std::uint32_t> words_of(const Device& device, Range range);  // waits for the device
void set_words(Buffer& buffer, std::uint32_t value);
bool all_words(const Buffer& buffer, std::uint32_t value);

}  // namespace slip::test
