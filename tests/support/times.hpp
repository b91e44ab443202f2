// Durations in virtual time: kernels that take a given time, and how long a program took.
#pragma once

#include <utility>

#include "slip/device.hpp"
#include "support/kernels.hpp"

namespace slip::test {

inline constexpr Picos kMs = 1'000'000'000;

// A kernel that touches nothing and takes this long in virtual time, on this share of the device. On devices with real
// time it takes none.
void busy(StreamRef stream, Picos ms, double width = 1.0);

// Virtual time from now, with the device idle, until all work that `program` issues is done.
template <class Program>
Picos duration(const Device& device, Program&& program) {
  device.sync();
  const Picos begin = device.now();
  program();
  device.sync();
  return device.now() - begin;
}

}  // namespace slip::test
