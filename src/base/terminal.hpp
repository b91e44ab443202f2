// Makes text safe to print on a terminal. Untrusted text (from files, arguments, the environment, other processes and
// hosts) must pass these functions, because a terminal executes control characters.
#pragma once

#include <string>
#include <string_view>

namespace slip::base {

// Keeps newlines and tabs. Other control characters (C0 and C1), marks that change the text direction, and bytes that
// are not UTF-8 are written as "\x1b".
std::string terminal_text(std::string_view text);

// The same on one line, and never longer than the text: newlines and tabs become spaces, each unsafe byte becomes a
// '?'.
std::string single_line_text(std::string_view text);

// Writes "slip: text" to stderr. For errors that cannot be thrown: in destructors and at process exit. A line that
// cannot be written is lost.
void log_line(std::string_view text) noexcept;

}  // namespace slip::base
