// `slip generate man|bash|zsh` (hidden; the build calls it): writes the man page and the shell completions from
// the parser's commands and options, so that they are always up to date.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "backend/sim/description.hpp"
#include "cli/commands.hpp"
#include "cli/lab/lab.hpp"

namespace slip::cli {
namespace {

// Escapes text for roff: no line may begin with a control character.
std::string roff(std::string_view text) {
  std::string result;
  bool begin = true;
  for (const char c : text) {
    if (begin && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') result += "\\e";
    else if (c == '-') result += "\\-";
    else result += c;
    begin = c == '\n';
  }
  return result;
}

std::string man_option(const CLI::Option& option, const std::string& name) {
  const std::string type = option.get_type_size() == 0 ? "" : option.get_type_name();
  const std::string otherwise = option.get_default_str().empty() ? "" : " (" + option.get_default_str() + ")";
  return fmt::format(".TP\n.B {}{}\n{}{}\n", roff(name), type.empty() ? "" : " \\fI" + roff(type) + "\\fR",
                     roff(option.get_description()), roff(otherwise));
}

std::string man_command(const CLI::App& command) {
  std::string text = fmt::format(".SS {}\n{}\n", roff(line_of(command)), roff(command.get_description()));
  for (const CLI::Option* option : command.get_options()) {
    const std::vector<std::string> names = option_names(*option);
    text += man_option(*option, names.empty() ? option->get_name() : fmt::format("{}", fmt::join(names, ", ")));
  }
  if (!command.get_footer().empty()) text += fmt::format(".PP\n.nf\n{}\n.fi\n", roff(command.get_footer().substr(1)));
  for (const CLI::App* below : commands_of(command)) text += man_command(*below);
  return text;
}

std::string man_page(const CLI::App& app) {
  std::string text = fmt::format(
      ".\\\" Made by slip generate man\n.TH SLIP 1 \"\" \"Slipstream {}\" \"User Commands\"\n.SH NAME\nslip \\- {}\n"
      ".SH SYNOPSIS\n.B slip\n.I COMMAND\n[\\fIOPTION\\fR ...]\n.SH DESCRIPTION\n.nf\n{}\n.fi\n.SH OPTIONS\n",
      SLIP_VERSION, "streams, weights and collectives: run, predict, measure and check them",
      roff(app.get_description()));
  for (const CLI::Option* option : options_of(app))
    text += man_option(*option, fmt::format("{}", fmt::join(option_names(*option), ", ")));
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : commands_of(app)) text += man_command(*command);
  return text + fmt::format(".SH EXIT STATUS\n.nf\n{}\n.fi\n", roff(app.get_footer().substr(1)));
}

// What a shell can complete after one command: subcommands, options, and values of --device.
struct Choices {
  std::string path;                                                 // "/bench/all_reduce"; empty: slip itself
  std::vector<std::pair<std::string, std::string>> words, options;  // with their descriptions
};

void collect(const CLI::App& app, const std::string& path, std::vector<Choices>& all) {
  Choices choices{path, {}, {}};
  for (const CLI::App* command : commands_of(app))
    choices.words.emplace_back(command->get_name(), command->get_description());
  if (path == "/lab") {
    for (const Lab& lab : labs()) choices.words.emplace_back(lab.name, lab.summary);
  }
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : option_names(*option)) choices.options.emplace_back(name, option->get_description());
  }
  all.push_back(std::move(choices));
  for (const CLI::App* command : commands_of(app)) collect(*command, path + "/" + command->get_name(), all);
}

std::vector<Choices> choices_of(const CLI::App& app) {
  std::vector<Choices> all;
  collect(app, "", all);
  for (Choices& one : all) {
    if (one.path == "/help") one.words = all.front().words;
  }
  return all;
}

std::string devices() {
  std::string text = "cpu cuda:0";
  for (const base::EmbeddedFile& file : sim::embedded_devices()) text += fmt::format(" sim:{}", file.name);
  return text;
}

// The paths of all commands, as patterns of `case`.
std::string paths(const std::vector<Choices>& all) {
  std::string text;
  for (const Choices& one : all) {
    if (!one.path.empty()) text += (text.empty() ? "" : "|") + one.path;
  }
  return text;
}

// The completion script of a shell (src/cli/completion), with the choices inserted.
std::string completion(std::string_view shell, const std::vector<Choices>& all, const std::string& cases) {
  std::string text(std::ranges::find(completion_scripts(), shell, &base::EmbeddedFile::name)->text);
  for (const auto& [mark, by] :
       {std::pair("@paths@", paths(all)), std::pair("@cases@\n", cases), std::pair("@devices@", devices())})
    text.replace(text.find(mark), std::string_view(mark).size(), by);
  return text;
}

std::string bash_completion(const CLI::App& app) {
  const std::vector<Choices> all = choices_of(app);
  const auto names = [](const auto& list) {
    std::string text;
    for (const auto& entry : list) text += (text.empty() ? "" : " ") + entry.first;
    return text;
  };
  std::string cases;
  for (const Choices& one : all)
    cases += fmt::format("    '{}') words='{}' options='{}' ;;\n", one.path, names(one.words), names(one.options));
  return completion("bash", all, cases);
}

std::string zsh_completion(const CLI::App& app) {
  const std::vector<Choices> all = choices_of(app);
  // zsh wants 'name:description': quotes would end the string, colons the name.
  const auto described = [](const auto& list) {
    std::string text;
    for (const auto& [name, meaning] : list) {
      std::string safe;
      for (const char c : meaning) {
        if (c == '\'') safe += "'\\''";
        else if (c == ':' || c == '\\') safe += fmt::format("\\{}", c);
        else safe += c == '\n' ? ' ' : c;
      }
      text += fmt::format(" '{}:{}'", name, safe);
    }
    return text;
  };
  std::string cases;
  for (const Choices& one : all)
    cases +=
        fmt::format("    '{}') list=({} ) options=({} ) ;;\n", one.path, described(one.words), described(one.options));
  return completion("zsh", all, cases);
}

}  // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("generate", "Write the man page or a shell's completion");
  command->group("");
  command->add_option("WHAT", *what, "man, bash or zsh")->required()->check(CLI::IsMember({"man", "bash", "zsh"}));
  return [what, &app] {
    write_file("-", *what == "man" ? man_page(app) : *what == "bash" ? bash_completion(app) : zsh_completion(app));
    return kSuccess;
  };
}

}  // namespace slip::cli
