// `slip help COMMAND` and `slip --version`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "cli/app_tree.hpp"
#include "cli/commands.hpp"
#include "cli/version.hpp"

namespace slip::cli {
namespace {

int help(const CLI::App& app, const std::vector<std::string>& path) {
  const CLI::App* command = &app;
  for (const std::string& name : path) {
    const std::vector<std::string> names = command_names(*command);
    if (names.empty())
      throw UsageError(fmt::format("{0} has no command '{1}', nor any other: see {0} --help", line_of(*command), name));
    const CLI::App* below = nullptr;
    for (const CLI::App* each : commands_of(*command)) below = each->get_name() == name ? each : below;
    if (!below) throw UsageError(fmt::format("no command '{}'{}", name, allowed(name, names)));
    command = below;
  }
  // App::help() would explain the command that is running.
  fmt::print("{}", app.get_formatter()->make_help(command, line_of(*command), CLI::AppFormatMode::Normal));
  return kSuccess;
}

}  // namespace

std::string version_text() {
#ifdef SLIP_HAS_CUDA
  constexpr const char* kCuda = "yes";
#else
  constexpr const char* kCuda = "no";
#endif
  return fmt::format("slip {}, commit {}, CUDA: {}", SLIP_VERSION, kCommit, kCuda);
}

std::function<int()> add_help(CLI::App& app) {
  auto path = std::make_shared<std::vector<std::string>>();
  CLI::App* command = app.add_subcommand("help", "Explain a command: slip help bench all_reduce");
  command->add_option("COMMAND", *path, "The command, and the one below it");
  return [path, &app] { return help(app, *path); };
}

}  // namespace slip::cli
