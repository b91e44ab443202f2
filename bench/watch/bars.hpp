// The bars of this benchmark, by file.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_checker_bars(Harness& harness);
void add_command_bars(Harness& harness);

}  // namespace slip::bench
