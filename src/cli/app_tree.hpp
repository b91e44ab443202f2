// The commands and options that the parser knows, for texts that must never miss one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace slip::cli {

std::vector<const CLI::App*> commands_of(const CLI::App& app);     // without hidden ones
std::vector<const CLI::Option*> options_of(const CLI::App& app);   // those that begin with a hyphen
std::vector<std::string> option_names(const CLI::Option& option);  // "-n", "--ranks"
std::vector<std::string> command_names(const CLI::App& app);
std::string line_of(const CLI::App& app);  // "slip bench all_reduce"
// For a word that is none of them: ": did you mean all_reduce? There are ...".
std::string allowed(std::string_view typed, const std::vector<std::string>& words);

}  // namespace slip::cli
