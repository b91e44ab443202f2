// The page of --html: time and bus bandwidth by size, both scales logarithmic, and the table. It needs nothing else.
#pragma once

#include <string>
#include <vector>

#include "cli/collectives/measure.hpp"

namespace slip::cli {

// `title`: of the page; `facts`: one line below it. Rows are in the order of their sizes.
std::string bench_page(const std::string& title, const std::string& facts, const std::vector<BenchRow>& rows);

}  // namespace slip::cli
