// The timeline page with a million ops, in Chromium.
#pragma once

#include "support/harness.hpp"

namespace slip::bench {

void add_page_bars(Harness& harness);

}  // namespace slip::bench
