// The program `slip`: parses the command line, runs one command, and reports an error as one line and an exit status.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"

namespace slip::cli {
namespace {

constexpr const char* kAbout =
    "Slipstream keeps a processor busy while data moves: kernels, copies and communication run on\n"
    "ordered streams with the rules of CUDA streams, on a machine with or without a GPU.\n"
    "\n"
    "Commands to try first:\n"
    "  slip model stack --blocks 8 -o m/    writes a model; slip run m/ --budget 120MiB --check runs it\n"
    "                                       in less memory than its weights need\n"
    "  slip lab overlap                     copies that overlap kernels, on this machine's cores\n"
    "  slip lab weights --device sim:h200   a model in two weight slots, on a simulated H200\n"
    "  slip devices                         the devices of this machine, with measured rates";

constexpr const char* kFooter =
    "\n`slip help COMMAND` or `slip COMMAND --help` explains a command. --json, --html and --trace take a\n"
    "FILE; without one, or with -, they write to the standard output, and no tables are printed.\n"
    "Status: 0 success, 1 failure, 2 unknown command, option or value.";

std::vector<std::string> all_option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : options_of(command)) names.push_back(option_names(*option).back());
  return names;
}

// The type that an unreadable option value should have had. The parser's text names the option.
std::string expected_number(const CLI::App& command, const std::string& text) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_type_name() == "FLOAT" && text.find(option->get_name()) != std::string::npos)
      return ": a number is expected";
  }
  return ": a whole number is expected";
}

// An argument that the command does not know: an option, a subcommand, or one argument too many.
std::string refused_argument(const CLI::App& command, const std::string& value) {
  if (value.starts_with('-')) return fmt::format("no option '{}'{}", value, allowed(value, all_option_names(command)));
  const std::vector<std::string> subcommands = command_names(command);
  if (!subcommands.empty())
    return fmt::format("no command '{}{}{}'{}", command.get_parent() ? command.get_name() : "",
                       command.get_parent() ? " " : "", value, allowed(value, subcommands));
  return fmt::format("'{}' is one argument too many for {}; see {} --help", value, command.get_name(),
                     line_of(command));
}

// The parser's error as one line.
std::string refusal(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  const std::vector<std::string> extra = app.remaining(true);
  const bool required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (!extra.empty() && (required || dynamic_cast<const CLI::ExtrasError*>(&error)))
    return refused_argument(*command, extra.front());
  if (required && !command_names(*command).empty())
    return fmt::format("{} needs one of {}; see {} --help", line_of(*command), fmt::join(command_names(*command), ", "),
                       line_of(*command));
  std::string text = error.what();
  if (const std::string option = option_that_took({}); required && !option.empty())
    text += fmt::format("; {} took an argument as its FILE: put it last, or write {}=FILE", option, option);
  if (dynamic_cast<const CLI::ConversionError*>(&error)) text += expected_number(*command, text);
  std::ranges::replace(text, '\n', ' ');
  return text;
}

int complain(const std::string& text, int status) {
  fmt::print(stderr, "slip: {}\n", base::terminal_text(text));
  return status;
}

// In the order of the help text. Each function adds one subcommand, so run() finds the called one by its index.
constexpr std::function<int()> (*kCommands[])(CLI::App& app) = {
    add_devices, add_lab,   add_check,  add_stats, add_view,  add_model, add_compress, add_decompress, add_plan,
    add_run,     add_bench, add_launch, add_topo,  add_ranks, add_help,  add_generate, add_one_queue,  add_agent};

int run(int argc, char** argv) {
  CLI::App app(kAbout, "slip");
  app.footer(kFooter);
  app.set_version_flag("--version", version_text(), "Print version, commit and CUDA support, and exit");
  app.require_subcommand(0, 1);
  std::vector<std::function<int()>> work;
  for (const auto& add : kCommands) work.push_back(add(app));
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help and --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    return complain(refusal(app, error), kBadUsage);
  }
  escape_standard_output();
  open_outputs();
  for (std::size_t i = 0; i < work.size(); ++i) {
    if (app.get_subcommand(static_cast<int>(i))->parsed()) return work[i]();
  }
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
