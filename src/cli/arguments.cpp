// Arguments of commands that name an input or an output: numbers, devices, traces and files; see commands.hpp.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <vector>

#include "backend/sim/description.hpp"
#include "base/output_file.hpp"
#include "cli/commands.hpp"
#include "runtime/backend.hpp"

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

CLI::Option* declare(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                     OutputUse use) {
  CLI::Option* added = command.add_option_function<std::string>(
      option,
      [&path](const std::string& file) { path = file.empty() || file == "/dev/stdout" ? std::string("-") : file; },
      text);
  outputs().push_back({added, &path, use});
  return added;
}

// Several outputs may go to /dev/null or /dev/stderr, for example.
bool may_be_shared(const std::string& path) { return path.starts_with("/dev/"); }

std::string allowed_devices() {
  std::string text;
  for (const runtime::BackendEntry& entry : runtime::backends()) {
    if (entry.prefix != "sim") text += fmt::format("{}, ", entry.prefix);
  }
  for (const base::EmbeddedFile& file : sim::embedded_devices()) text += fmt::format("sim:{}, ", file.name);
  return text + "or the path of a description (.json)";
}

// "ranks 0 to 3", or "ranks 0, 2 of 4" if some are missing.
std::string ranks_text(const std::vector<TraceData>& traces) {
  std::vector<int> ranks;
  for (const TraceData& trace : traces) ranks.push_back(trace.process.rank);
  std::ranges::sort(ranks);
  const int all = traces.front().process.ranks;
  if (static_cast<int>(ranks.size()) == all) return fmt::format("ranks 0 to {}", all - 1);
  return fmt::format("ranks {} of {}", fmt::join(ranks, ", "), all);
}

}  // namespace

CLI::Option* add_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                        OutputUse use) {
  return declare(command, option, path, text, use)->type_name("[FILE]")->expected(0, 1);
}

CLI::Option* add_named_output(CLI::App& command, const std::string& option, std::string& path,
                              const std::string& text) {
  return declare(command, option, path, text, OutputUse::kHere)->type_name("FILE");
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

CLI::Validator number_between(double min, double max) {
  return CLI::Validator(
      [min, max](std::string& text) {
        double value = 0;
        const bool within = CLI::detail::lexical_cast(text, value) && value >= min && value <= max;
        return within ? std::string() : fmt::format("'{}': a number from {} to {} is expected", text, min, max);
      },
      fmt::format("{} to {}", min, max));
}

bool has_backend(std::string_view prefix) {
  return std::ranges::any_of(runtime::backends(),
                             [&](const runtime::BackendEntry& entry) { return entry.prefix == prefix; });
}

Device open_device(const std::string& name, const DeviceOptions& options) {
  const std::string prefix = name.substr(0, name.find(':'));
  if (prefix == "cuda" && !has_backend("cuda"))
    throw UsageError(fmt::format("no device '{}': this program was built without CUDA", name));
  if (!has_backend(prefix)) throw UsageError(fmt::format("no device '{}': there are {}", name, allowed_devices()));
  try {
    return Device::open(name, options, {});
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInvalidDevice && prefix == "sim")
      throw UsageError(fmt::format("no device '{}': there are {}", name, allowed_devices()));
    if (error.code() == ErrorCode::kInvalidDevice || error.code() == ErrorCode::kIo ||
        error.code() == ErrorCode::kParse)
      throw UsageError(fmt::format("device '{}': {}", name, error.what()));
    throw;
  }
}

std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths) {
  std::vector<TraceData> traces;
  for (const std::string& path : paths) traces.push_back(read_trace(path, {}));
  std::vector<NamedTrace> result;
  if (are_ranks_of_one_job(traces)) {
    result.push_back({fmt::format("{} and {} more: {}", paths.front(), paths.size() - 1, ranks_text(traces)),
                      merge_traces(traces, {})});
    return result;
  }
  for (std::size_t i = 0; i < paths.size(); ++i) result.push_back({paths[i], std::move(traces[i])});
  return result;
}

}  // namespace slip::cli
