// Kernels for the tests of the cuda device alone.
#pragma once

#include "slip/kernel.hpp"

namespace slip::test {

// out(0)[i] = in(0)[i] * scalar(0) + scalar(1), floats
const Kernel& affine();
// Writes to address 8: the device is lost.
const Kernel& wild();
// Spins for scalar(0) nanoseconds.
const Kernel& spin();

}  // namespace slip::test
