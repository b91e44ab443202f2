#include "base/log.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "base/terminal_text.hpp"

namespace slip {

void log_line(std::string_view text) { fmt::print(stderr, "slip: {}\n", terminal_text(text)); }

}  // namespace slip
