// Running a program in many random orders that its events allow: a missing edge shows as a wrong result.
#pragma once

#include <functional>

#include "slip/device.hpp"

namespace slip::cli {

// How many of `seeds` runs were wrong. `program` issues, synchronises and says whether the result is right. Always on
// the cpu device with Policy::kRandom: it alone tries orders that time would hide.
int wrong_in_random_orders(int seeds, const std::function<bool(const Device&)>& program);

}  // namespace slip::cli
