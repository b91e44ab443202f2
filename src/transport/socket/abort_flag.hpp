// OwnedDescriptor: a file descriptor that is closed with the object. WakeUp: an eventfd with which any thread ends the
// poll of another thread. AbortFlag: set once by any thread, never reset; it ends every wait that checks it. The flag
// has a descriptor, because only a descriptor can end a poll for a socket.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "base/fail.hpp"

namespace slip::transport {

class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int number) : number_(number) {}
  ~OwnedDescriptor() { reset(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    reset(std::exchange(other.number_, -1));
    return *this;
  }
  int number() const noexcept { return number_; }  // -1: none
  void reset(int number = -1) noexcept {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }

 private:
  int number_ = -1;
};

class WakeUp {
 public:
  WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor() < 0) base::fail(Code::kIo, {}, "cannot make an event descriptor: {}", std::strerror(errno));
  }

  // write() fails only if the counter is at its maximum: the descriptor is readable then, too. `!` uses the result,
  // which the C library declares as warn_unused_result.
  void signal() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(descriptor(), &one, sizeof(one)));
  }
  void drain() const noexcept {
    std::uint64_t count = 0;
    static_cast<void>(!::read(descriptor(), &count, sizeof(count)));
  }
  int descriptor() const noexcept { return descriptor_.number(); }  // readable between signal() and drain()

 private:
  const OwnedDescriptor descriptor_;
};

class AbortFlag {
 public:
  void set() noexcept {
    set_.store(true, std::memory_order_release);  // release: pairs with the acquire in is_set()
    wake_up_.signal();
  }
  // acquire: a thread that sees the flag sees what was written before it was set.
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  // Becomes readable when the flag is set, and stays readable.
  int descriptor() const noexcept { return wake_up_.descriptor(); }

 private:
  std::atomic<bool> set_{false};
  WakeUp wake_up_;
};

}  // namespace slip::transport
