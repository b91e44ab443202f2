// The options that name an output; see commands.hpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <map>
#include <vector>

#include "base/output_file.hpp"
#include "cli/commands.hpp"

namespace slip::cli {
namespace {

struct Output {
  const CLI::Option* option;
  const std::string* path;
  OutputUse use;
};

// The output options of all commands. Only options of the called command have a count() above 0.
std::vector<Output>& outputs() {
  static std::vector<Output> all;
  return all;
}

CLI::Option* add(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                 OutputUse use) {
  CLI::Option* added = command.add_option_function<std::string>(
      option,
      [&path](const std::string& file) { path = file.empty() || file == "/dev/stdout" ? std::string("-") : file; },
      text);
  outputs().push_back({added, &path, use});
  return added;
}

bool may_be_shared(const std::string& path) { return path.starts_with("/dev/"); }

}  // namespace

CLI::Option* add_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                        OutputUse use) {
  return add(command, option, path, text, use)->type_name("[FILE]")->expected(0, 1);
}

CLI::Option* add_named_output(CLI::App& command, const std::string& option, std::string& path,
                              const std::string& text) {
  return add(command, option, path, text, OutputUse::kHere)->type_name("FILE");
}

void open_outputs() {
  std::map<std::string, std::string> used;  // option by path
  bool reserve = false;
  for (const Output& output : outputs()) {
    if (output.option->count() == 0) continue;
    const std::string &path = *output.path, option = output.option->get_name();
    const auto [other, is_new] = used.try_emplace(path, option);
    if (!is_new && !may_be_shared(path))
      throw UsageError(fmt::format("{} and {} cannot both go to {}", other->second, option,
                                   path == "-" ? "the standard output: name a FILE" : "'" + path + "'"));
    if (path == "-") reserve = reserve || output.use != OutputUse::kByChildren;
    else if (output.use != OutputUse::kElsewhere) base::check_output_path(path, {});
  }
  if (reserve) base::reserve_standard_output();
}

std::string option_that_took(const std::string& value) {
  for (const Output& output : outputs()) {
    for (const std::string& result : output.option->results()) {
      if (!result.empty() && (value.empty() || result == value)) return output.option->get_name();
    }
  }
  return {};
}

void write_file(const std::string& path, std::string_view text) { base::write_file(path, text, {}); }

}  // namespace slip::cli
