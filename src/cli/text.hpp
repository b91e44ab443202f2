// Text for the terminal: output that cannot smuggle escape sequences, and paragraphs that fit its width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/quantity_text.hpp"

namespace slip::cli {

// After this call all text printed to `stdout` passes through terminal_text(), which escapes control characters. Data
// written by OutputFile do not.
void escape_standard_output();

// Width of the terminal, at least 40 columns. `otherwise` if the standard output is no terminal, so that files look the
// same everywhere.
std::size_t terminal_columns(std::size_t otherwise);

inline constexpr std::size_t kColumns = 100;

// Breaks the text into lines of at most 100 columns, or of the terminal's width. Lines are indented by `indent` spaces;
// the first one starts with `first` instead.
std::string paragraph(std::string_view text, std::size_t indent = 0, std::string_view first = {});

// Escapes &, <, > and quotes for HTML and SVG.
std::string html_text(std::string_view text);

}  // namespace slip::cli
