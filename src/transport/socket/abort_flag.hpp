// OwnedDescriptor: a file descriptor that is closed with the object. WakeUp: any thread can end the poll of another
// one. AbortFlag: one call from any thread ends every wait that looks at it, at once and for good. It has a descriptor,
// because a poll for a socket can only be ended by a descriptor.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "slip/error.hpp"

namespace slip {

class OwnedDescriptor {
 public:
  explicit OwnedDescriptor(int number) : number_(number) {}
  ~OwnedDescriptor() {
    if (number_ >= 0) ::close(number_);
  }
  OwnedDescriptor(const OwnedDescriptor&) = delete;
  OwnedDescriptor& operator=(const OwnedDescriptor&) = delete;
  int number() const noexcept { return number_; }

 private:
  const int number_;
};

class WakeUp {
 public:
  WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor() < 0)
      throw Error(Code::kIo, std::string("cannot make an event descriptor: ") + std::strerror(errno), {});
  }

  void signal() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(descriptor(), &one, sizeof(one)));
  }
  void drain() const noexcept {
    std::uint64_t count = 0;
    static_cast<void>(!::read(descriptor(), &count, sizeof(count)));
  }
  int descriptor() const noexcept { return descriptor_.number(); }  // readable from signal() to drain()

 private:
  const OwnedDescriptor descriptor_;
};

class AbortFlag {
 public:
  void set() noexcept {
    set_.store(true, std::memory_order_release);  // release: pairs with is_set()
    wake_up_.signal();
  }
  // acquire: a thread that sees the flag sees what was written before it was set.
  bool is_set() const noexcept { return set_.load(std::memory_order_acquire); }
  int descriptor() const noexcept { return wake_up_.descriptor(); }  // readable once it is set, and it stays so

 private:
  std::atomic<bool> set_{false};
  WakeUp wake_up_;
};

}  // namespace slip
