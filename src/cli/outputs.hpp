// Options that name an output. One rule for every command: `--json [FILE]` (and `--html`, `--trace`, ...) writes to
// FILE. Without FILE, or with `-`, the data go to the standard output and the usual text is not printed. Paths are
// checked before the work begins.
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

// `path` becomes empty if the option is not given, and "-" for the standard output.
CLI::Option* add_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                        OutputUse use = OutputUse::kHere);
// The same for an option that requires FILE, like -o.
CLI::Option* add_named_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text);

// main() calls it after parsing, before any work. It throws if a path cannot be written or two outputs have the same
// path. If an output goes to the standard output, other text is no longer printed there.
void open_outputs();

// The option that may have taken the command's argument as its FILE, for example "--json"; empty: none.
std::string option_that_took(const std::string& value);

// Replaces the file atomically, or throws kIo with the path and the reason.
void write_file(const std::string& path, std::string_view text);

}  // namespace slip::cli
