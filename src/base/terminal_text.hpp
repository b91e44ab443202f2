// Text that is safe to show on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace slip {

// Names come from files, arguments and the environment, and a terminal obeys the control bytes in them. Newlines and
// tabs stay; other control characters (also those of 8 bits), and bytes that are not UTF-8, are written out: "\x1b".
std::string terminal_text(std::string_view text);

}  // namespace slip
