// Durations in virtual time: kernels that take a given time, and the duration of a program.
#pragma once

#include <utility>

#include "slip/device.hpp"
#include "support/kernels.hpp"

namespace slip::test {

inline constexpr Picos kMs = 1'000'000'000;

// Launches a kernel that accesses no memory. In virtual time it takes `ms` on the share `width` of the device; in real
// time it takes no time.
void busy(StreamRef stream, Picos ms, double width = 1.0);

// Waits until the device is idle, then returns the virtual time until all work that `program` issues is done.
template <class Program>
Picos duration(const Device& device, Program&& program) {
  device.sync();
  const Picos begin = device.now();
  program();
  device.sync();
  return device.now() - begin;
}

}  // namespace slip::test
