// Text from others (files, arguments, the environment, other processes and hosts), made safe to show on a terminal: a
// terminal obeys the control characters in it.
#pragma once

#include <string>
#include <string_view>

namespace slip {

// Newlines and tabs stay. Other control characters (also those of 8 bits), marks that change the direction of the text
// around them, and bytes that are not UTF-8 are written out: "\x1b".
std::string terminal_text(std::string_view text);

// The same in one line and never longer than the text: line ends and tabs become spaces, each other such byte a '?'.
std::string single_line_text(std::string_view text);

}  // namespace slip
