// Gate: holds streams back until the test opens it. So the test decides which work is pending, without sleeping.
// HostCall: makes a call in another thread, and checks whether it returns while a gate is closed.
//
//   Gate gate(device);
//   gate.hold(stream);                         // nothing issued to `stream` from here on runs
//   HostCall call([&] { stream.sync(); });
//   EXPECT_TRUE(call.holds(device));           // it waits
//   gate.open();
//   EXPECT_TRUE(call.ends());                  // now it returns
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "slip/device.hpp"
#include "support/devices.hpp"

namespace slip::test {

// Declare buffers and streams before the gate. Its destructor opens it, also when an assertion ends the test early.
class Gate {
 public:
  explicit Gate(const Device& device) : word_(device.alloc(sizeof(std::uint32_t), MemoryKind::kPinned, "gate")) {
    set(0);
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void hold(StreamRef stream, std::uint32_t value = 1) const { stream.wait_value(word_, value, "gate"); }
  // release: bytes that the host wrote before are visible to the work that the gate held.
  void set(std::uint32_t value) { word().store(value, std::memory_order_release); }
  // The largest value that a GPU takes as larger than 0: it compares the difference of two values as a signed number.
  void open() { set(0x7fffffffU); }
  Range range() const { return word_; }
  std::uint32_t value() { return word().load(std::memory_order_acquire); }

 private:
  std::atomic_ref<std::uint32_t> word() { return std::atomic_ref(*static_cast<std::uint32_t*>(word_.native())); }
  Buffer word_;
};

class HostCall {
 public:
  explicit HostCall(std::function<void()> function);
  ~HostCall();
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  // Whether the call has not returned after other work of `device` ran, and 2 ms later.
  testing::AssertionResult holds(const Device& device);
  // Whether the call returns within kLimit. Rethrows its exception.
  testing::AssertionResult ends();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool begun_ = false, returned_ = false;  // guarded by mutex_
  std::exception_ptr error_;               // guarded by mutex_
  std::thread thread_;
};

}  // namespace slip::test
