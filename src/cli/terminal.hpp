// The terminal that the program prints to.
#pragma once

#include <cstddef>

namespace slip::cli {

// From now on everything printed to `stdout` passes through terminal_text(), wherever it comes from. Data do not: they
// are written by OutputFile.
void escape_standard_output();

// Columns of the terminal, 40 at least; `otherwise` where the standard output is none: files are the same everywhere.
std::size_t terminal_columns(std::size_t otherwise);

}  // namespace slip::cli
