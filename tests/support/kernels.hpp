// The kernels of the tests, and Trail, which shows in which order ops ran.
//
// Each kernel has a function for devices that run on the host and one for GPUs (cuda_kernels.hpp). Exceptions are
// `fail` and `fault`, which a GPU cannot do.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "slip/device.hpp"
#include "support/meeting_flags.hpp"

namespace slip::test {

const Kernel& idle_kernel();   // touches nothing, whatever it declares
const Kernel& store_kernel();  // out(0)[i] = scalar(0)
const Kernel& mix_kernel();    // out(0)[i] = mixed(out(0)[i], scalar(0))
const Kernel& add_kernel();    // out(0)[i] = in(0)[i] + scalar(0)
const Kernel& fail_kernel();   // throws std::runtime_error("on purpose")
const Kernel& fault_kernel();  // throws DeviceFault("illegal address 0xdead")
const Kernel& meet_kernel();   // waits until all members of a Meeting have arrived (scalar 0: its MeetingFlags)

// Not commutative: another order gives another value.
constexpr std::uint32_t mixed(std::uint32_t state, std::uint32_t value) {
  state = (state ^ value) * 0x9e3779b1u;
  return state ^ (state >> 15);
}

// Ops that each mix a number into one word of device memory. The final value shows the order in which they ran.
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

// Members (kernels or other functions) that wait for each other. If one does not arrive, all return at a deadline of 2
// to 10 s. The object must outlive them.
class Meeting {
 public:
  explicit Meeting(int expected);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  void meet();            // arrives and waits for the others
  void arrive();          // does not wait
  bool complete() const;  // all have arrived, and none before the last one gave up
  // Launches a kernel in `stream` that is a member.
  void launch(StreamRef stream) { stream.launch(meet_kernel(), {.scalars = {flags_}}); }

 private:
  MeetingFlags own_{};
  MeetingFlags* flags_;  // own_, or flags in memory that a GPU can access
};

// 32-bit words in memory of the host or the device.
std::vector<std::uint32_t> words_of(const Device& device, Range range);  // waits for the device
void set_words(Buffer& buffer, std::uint32_t value);
bool all_words(const Buffer& buffer, std::uint32_t value);
// The same without the knowledge of the race checker: for host memory that a stream may be using at the same time,
// which a correct program must not access.
void poke_words(Buffer& buffer, std::uint32_t value);
bool peek_words(const Buffer& buffer, std::uint32_t value);

}  // namespace slip::test
