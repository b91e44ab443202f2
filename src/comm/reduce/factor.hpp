// A rank's factor in a pre-multiplied sum.
#pragma once

#include "comm/reduce/reduce.hpp"
#include "slip/error.hpp"

namespace slip {

// As a value of the type. Throws if it is none.
ReduceScale scale_of(DataType type, double factor, Here here);

}  // namespace slip
