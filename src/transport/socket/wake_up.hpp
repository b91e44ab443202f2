// WakeUp: lets any thread end the poll of another, which then looks at what there is to do.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "slip/error.hpp"

namespace slip {

class WakeUp {
 public:
  WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (descriptor_ < 0)
      throw Error(Code::kIo, std::string("cannot make an event descriptor: ") + std::strerror(errno), {});
  }
  ~WakeUp() { ::close(descriptor_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;

  void signal() const noexcept {
    const std::uint64_t one = 1;
    static_cast<void>(!::write(descriptor_, &one, sizeof(one)));
  }
  void drain() const noexcept {
    std::uint64_t count = 0;
    static_cast<void>(!::read(descriptor_, &count, sizeof(count)));
  }
  int descriptor() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace slip
