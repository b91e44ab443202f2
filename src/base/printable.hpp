// Text from others (files, other processes, other hosts), made fit for a terminal and for JSON.
#pragma once

#include <string>
#include <string_view>

namespace slip {

// Valid UTF-8 in one line without control characters, so that no text can move the cursor, colour the terminal or turn
// its direction. Line ends and tabs become spaces, each other byte that is not printable becomes '?': the result is
// never longer than the text.
std::string printable(std::string_view text);

}  // namespace slip
