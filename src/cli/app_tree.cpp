#include "cli/app_tree.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "cli/suggest.hpp"

namespace slip::cli {

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
  return commands;
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options(
      [](const CLI::Option* option) { return !option->get_lnames().empty() || !option->get_snames().empty(); });
}

std::vector<std::string> option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

std::string line_of(const CLI::App& app) {
  return app.get_parent() ? line_of(*app.get_parent()) + " " + app.get_name() : app.get_name();
}

std::string allowed(std::string_view typed, const std::vector<std::string>& words) {
  const std::string nearest = did_you_mean(typed, words);
  return fmt::format("{} {}", nearest.empty() ? ": there are" : nearest + " There are", fmt::join(words, ", "));
}

}  // namespace slip::cli
