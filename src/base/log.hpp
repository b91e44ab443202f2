// Words to the person running the program, on stderr. For what cannot be thrown: destructors and process exit.
#pragma once

#include <string_view>

namespace slip {

void log_line(std::string_view text);  // "slip: text"

}  // namespace slip
