// Options that name an output. One rule for every command: `--json [FILE]` (and `--html`, `--trace`, ...) writes to
// FILE; without FILE, or with `-`, the data go to the standard output, and the text that is otherwise printed is left
// out. Paths are tried before the work begins.
#pragma once

#include <string>
#include <string_view>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace slip::cli {

enum class OutputUse {
  kHere,        // this process writes it
  kElsewhere,   // another rank writes it
  kByChildren,  // the ranks that this process starts write it, also to the standard output
};

// `path` is empty when the option is not given, and "-" for the standard output.
CLI::Option* add_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                        OutputUse use = OutputUse::kHere);
// The same for an option whose FILE must be named, like -o.
CLI::Option* add_named_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text);

// Once the command line is parsed, before any work: throws for a path that cannot be written and for two outputs in one
// place, and keeps the standard output for data if an output goes there.
void open_outputs();

// The option that may have taken an argument of the command as its FILE: "--json"; empty: none.
std::string option_that_took(const std::string& value);

// Writes the file whole, or throws kIo with the path and the reason.
void write_file(const std::string& path, std::string_view text);

}  // namespace slip::cli
