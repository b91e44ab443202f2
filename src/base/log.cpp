#include "base/log.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace slip {

void log_line(std::string_view text) { fmt::print(stderr, "slip: {}\n", text); }

}  // namespace slip
