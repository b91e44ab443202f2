// The kernels of the tests, and Trail, which shows in which order ops ran.
//
// Each kernel has a function for the devices that run on the host and one for GPUs (cuda_kernels.hpp), except fail and
// fault, which a GPU cannot do.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "slip/device.hpp"
#include "support/guests.hpp"

namespace slip::test {

const Kernel& idle_kernel();   // touches nothing, whatever it declares
const Kernel& store_kernel();  // out(0)[i] = scalar(0)
const Kernel& mix_kernel();    // out(0)[i] = mixed(out(0)[i], scalar(0))
const Kernel& add_kernel();    // out(0)[i] = in(0)[i] + scalar(0)
const Kernel& fail_kernel();   // throws std::runtime_error("on purpose")
const Kernel& fault_kernel();  // throws DeviceFault("illegal address 0xdead")
const Kernel& meet_kernel();   // waits until the others of a Meeting (its Guests: scalar 0) have come

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

// Kernels, or other functions, that wait for each other; all return soon if one does not come. It must outlive them.
class Meeting {
 public:
  explicit Meeting(int expected);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  // Marks the caller's arrival and waits for the others.
  void meet();
  void arrive();
  bool complete() const;
  // A kernel in `stream` that comes to this meeting.
  void launch(StreamRef stream) { stream.launch(meet_kernel(), {.scalars = {guests_}}); }

 private:
  Guests own_{};
  Guests* guests_;  // own_, or where a GPU reaches them, too
};

// Words of host memory and of the device.
std::vector<std::uint32_t> words_of(const Device& device, Range range);  // waits for the device
void set_words(Buffer& buffer, std::uint32_t value);
bool all_words(const Buffer& buffer, std::uint32_t value);
// The same behind the race checker's back: for host memory that a stream may be using just now, which no program should
// look at, or change.
void poke_words(Buffer& buffer, std::uint32_t value);
bool peek_words(const Buffer& buffer, std::uint32_t value);

}  // namespace slip::test
