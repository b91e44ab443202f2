// What one call must not be asked to do: write bytes that it also reads, or writes, for another message.
#pragma once

#include <span>
#include <vector>

#include "slip/error.hpp"
#include "slip/range.hpp"

namespace slip {

bool overlap(const Range& a, const Range& b);

// Messages of a group travel at the same time, so none may be received where another is sent from or received. Throws
// kInvalidValue. `sorted`: for the function's use; kept by the caller, so that nothing is allocated.
void require_apart(std::span<const Range> sent, std::span<const Range> received, std::vector<Range>& sorted, Here here);

}  // namespace slip
