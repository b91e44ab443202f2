// `slip help COMMAND`, `slip --version`, and the suggestions for mistyped words.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>

#include "cli/commands.hpp"

namespace slip::cli {
namespace {

// Ignores case, hyphens and underscores, so that all-reduce equals all_reduce.
std::string letters_of(std::string_view word) {
  std::string letters;
  for (const char c : word) {
    if (c != '-' && c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

// Edit distance with transpositions of neighbours (optimal string alignment).
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t k = 0; k <= b.size(); ++k) d[0][k] = k;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t k = 1; k <= b.size(); ++k) {
      d[i][k] = std::min({d[i - 1][k] + 1, d[i][k - 1] + 1, d[i - 1][k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1)});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
        d[i][k] = std::min(d[i][k], d[i - 2][k - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

// ": did you mean all_reduce?", or "" if no word is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words) {
  constexpr std::size_t kMax = 64;  // a longer word is not a typing mistake, and comparing it would take long
  const std::string given = letters_of(typed.substr(0, typed.find('=')));
  if (given.empty() || given.size() > kMax) return {};
  const std::string* best = nullptr;
  std::size_t min_distance = 0;
  for (const std::string& word : words) {
    const std::string letters = letters_of(word);
    // A third of the letters may be wrong. A prefix has distance 1: "ben" suggests bench.
    const bool is_prefix = given.size() >= 3 && letters.starts_with(given);
    const std::size_t away = is_prefix ? 1 : distance(given, letters);
    if (away * 3 > std::max(given.size(), letters.size()) || (best && away >= min_distance)) continue;
    best = &word;
    min_distance = away;
  }
  return best ? fmt::format(": did you mean {}?", *best) : std::string();
}

int help(const CLI::App& app, const std::vector<std::string>& path) {
  const CLI::App* command = &app;
  for (const std::string& name : path) {
    const std::vector<std::string> names = command_names(*command);
    if (names.empty())
      throw UsageError(
          fmt::format("{0} has no command '{1}' and no subcommands at all: see {0} --help", line_of(*command), name));
    const CLI::App* below = nullptr;
    for (const CLI::App* each : commands_of(*command)) below = each->get_name() == name ? each : below;
    if (!below) throw UsageError(fmt::format("no command '{}'{}", name, allowed(name, names)));
    command = below;
  }
  // App::help() would explain the running command, `help`.
  fmt::print("{}", app.get_formatter()->make_help(command, line_of(*command), CLI::AppFormatMode::Normal));
  return kSuccess;
}

}  // namespace

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
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
  command->add_option("COMMAND", *path, "The command and its subcommand");
  return [path, &app] { return help(app, *path); };
}

}  // namespace slip::cli
