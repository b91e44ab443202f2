// The program `slip`: parses the command line, runs one command, and turns what goes wrong into one line and a status.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "slip/error.hpp"

namespace slip::cli {
namespace {

constexpr const char* kAbout =
    "Slipstream keeps a processor busy while data moves: work, copies and communication run on\n"
    "ordered streams, with the rules of CUDA streams, on a machine with or without a GPU.\n"
    "\n"
    "Commands to try first:\n"
    "  slip model stack --blocks 8 -o m/    makes a model; slip run m/ --budget 120MiB --check runs it\n"
    "                                       in less memory than its weights take\n"
    "  slip lab overlap                     copies behind kernels, on this machine's cores\n"
    "  slip lab weights --device sim:h200   a model in two weight slots, on a simulated H200\n"
    "  slip devices                         what this machine offers, measured";

constexpr const char* kFooter =
    "\n`slip COMMAND --help` explains a command. Status: 0 done, 1 failed, 2 asked for something unknown.";

// "devices, lab" or "--device, --json, ...": what the user may write here.
std::string allowed_commands(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({}))
    text += fmt::format("{}{}", text.empty() ? "" : ", ", command->get_name());
  return text;
}

std::string allowed_options(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional() || !option->get_lnames().empty())
      text += fmt::format("{}{}", text.empty() ? "" : ", ", option->get_name());
  }
  return text;
}

// What an option that could not be read should have been; the parser names it in its text.
std::string expected_number(const CLI::App& command, const std::string& text) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name() == "FLOAT" && text.find(option->get_name()) != std::string::npos)
      return ": a number is expected";
  }
  return ": a whole number is expected";
}

// One line for what the parser refused.
std::string refusal(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  const std::vector<std::string> extra = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) && !extra.empty()) {
    const std::string& value = extra.front();
    if (value.starts_with('-')) return fmt::format("no option '{}': there are {}", value, allowed_options(*command));
    if (command == &app) return fmt::format("no command '{}': there are {}", value, allowed_commands(app));
    return fmt::format("'{}' is one argument too many for {}; see slip {} --help", value, command->get_name(),
                       command->get_name());
  }
  std::string text = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error)) text += expected_number(*command, text);
  for (char& c : text) {
    if (c == '\n') c = ' ';
  }
  return text;
}

int complain(const std::string& text, int status) {
  fmt::print(stderr, "slip: {}\n", text);
  return status;
}

int run(int argc, char** argv) {
  CLI::App app(kAbout, "slip");
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("slip ") + SLIP_VERSION, "Print the version and exit");
  app.require_subcommand(0, 1);
  const std::function<int()> devices = add_devices(app);
  const std::function<int()> lab = add_lab(app);
  const std::function<int()> check = add_check(app);
  const std::function<int()> stats = add_stats(app);
  const std::function<int()> view = add_view(app);
  const std::function<int()> model = add_model(app);
  const std::function<int()> plan = add_plan(app);
  const std::function<int()> run_within = add_run(app);
  const std::function<int()> bench = add_bench(app);
  const std::function<int()> launch = add_launch(app);
  const std::function<int()> topo = add_topo(app);
  const std::function<int()> ranks = add_ranks(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help and --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return complain(refusal(app, error), kBadUsage);
  }
  if (app.got_subcommand("devices")) return devices();
  if (app.got_subcommand("lab")) return lab();
  if (app.got_subcommand("check")) return check();
  if (app.got_subcommand("stats")) return stats();
  if (app.got_subcommand("view")) return view();
  if (app.got_subcommand("model")) return model();
  if (app.got_subcommand("plan")) return plan();
  if (app.got_subcommand("run")) return run_within();
  if (app.got_subcommand("bench")) return bench();
  if (app.got_subcommand("launch")) return launch();
  if (app.got_subcommand("topo")) return topo();
  if (app.got_subcommand("ranks")) return ranks();
  fmt::print("{}", app.help());
  return kSuccess;
}

}  // namespace
}  // namespace slip::cli

int main(int argc, char** argv) {
  using namespace slip::cli;
  try {
    const int status = run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return complain("cannot write to the standard output", kFailed);
    return status;
  } catch (const UsageError& error) {
    std::fflush(stdout);
    return complain(error.what(), kBadUsage);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    return complain(error.what(), kFailed);
  }
}
