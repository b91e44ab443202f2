// What the parser knows about commands and options, for help texts, completions and errors that name the alternatives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace slip::cli {

std::vector<const CLI::App*> commands_of(const CLI::App& app);     // without hidden commands
std::vector<const CLI::Option*> options_of(const CLI::App& app);   // without positional arguments
std::vector<std::string> option_names(const CLI::Option& option);  // "-n", "--ranks"
std::vector<std::string> command_names(const CLI::App& app);
std::string line_of(const CLI::App& app);  // "slip bench all_reduce"
// Text for an unknown word: ": did you mean all_reduce? There are ...".
std::string allowed(std::string_view typed, const std::vector<std::string>& words);

// ": did you mean all_reduce?", or "" if no word is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words);

// The commit of the source tree at build time: "1a2b3c4d5e6f", "... with changes", or "unknown" without git.
extern const char* const kCommit;

std::string version_text();  // "slip 0.1.0, commit 1a2b3c4d5e6f, CUDA: no"

}  // namespace slip::cli
