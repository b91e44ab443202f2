// Text for the terminal: output that cannot smuggle escape sequences, and paragraphs that fit its width.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "base/quantity_text.hpp"

namespace slip::cli {

// From now on everything printed to `stdout` passes through terminal_text(), wherever it comes from. Data do not: they
// are written by OutputFile.
void escape_standard_output();

// Columns of the terminal, 40 at least; `otherwise` where the standard output is none: files are the same everywhere.
std::size_t terminal_columns(std::size_t otherwise);

inline constexpr std::size_t kColumns = 100;

// The text in lines of at most 100 columns, or as many as the terminal has, each behind `indent` spaces, the first
// behind `first`.
std::string paragraph(std::string_view text, std::size_t indent = 0, std::string_view first = {});

// With what HTML and SVG would take for their own written out.
std::string html_text(std::string_view text);

}  // namespace slip::cli
