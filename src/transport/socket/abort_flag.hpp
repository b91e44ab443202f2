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

}  // namespace slip
