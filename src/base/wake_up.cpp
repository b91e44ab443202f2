#include "base/wake_up.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/fail.hpp"

namespace slip::base {

WakeUp::WakeUp() : descriptor_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (descriptor_ < 0) fail_errno("cannot make an event descriptor", errno);
}

WakeUp::~WakeUp() { ::close(descriptor_); }

// write() fails only if the counter is at its maximum: the descriptor is readable then, too. `!` uses the result, which
// the C library declares as warn_unused_result.
void WakeUp::signal() const noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!::write(descriptor_, &one, sizeof(one)));
}

void WakeUp::drain() const noexcept {
  std::uint64_t count = 0;
  static_cast<void>(!::read(descriptor_, &count, sizeof(count)));
}

}  // namespace slip::base
