#include "options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstddef>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace slip::bench {
namespace {

constexpr int kQuickRepeat = 3;
constexpr int kMaxRepeat = 100000;

int parse_repeat(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 1 || value > kMaxRepeat) {
    throw std::invalid_argument(fmt::format("--repeat needs a number from 1 to {}, not '{}'", kMaxRepeat, text));
  }
  return value;
}

bool takes_value(std::string_view name) { return name == "--json" || name == "--repeat" || name == "--filter"; }

void set_flag(Options& options, std::string_view name) {
  if (name == "--quick") options.quick = true;
  else if (name == "--help" || name == "-h") options.help = true;
  else throw std::invalid_argument(fmt::format("unknown argument '{}'", name));
}

// `value` is empty if the option is the last word.
void set_value(Options& options, std::string_view name, std::string_view value) {
  if (value.empty()) throw std::invalid_argument(fmt::format("{} needs a value", name));
  if (name == "--json") options.json_file = value;
  if (name == "--filter") options.filter = value;
  if (name == "--repeat") options.repeat = parse_repeat(value);
}

}  // namespace

Options parse_options(int argc, const char* const* argv) {
  const std::vector<std::string_view> words(argv, argv + argc);
  Options options;
  options.repeat = 0;  // not given
  options.command_line = fmt::format("{}", fmt::join(words, " "));
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view word = words[i];
    const auto equals = word.find('=');
    const std::string_view name = word.substr(0, equals);
    if (!takes_value(name)) {
      set_flag(options, word);
    } else if (equals != std::string_view::npos) {
      set_value(options, name, word.substr(equals + 1));
    } else {
      set_value(options, name, ++i < words.size() ? words[i] : std::string_view());
    }
  }
  if (options.repeat == 0) options.repeat = options.quick ? kQuickRepeat : Options{}.repeat;
  return options;
}

std::string usage_text(const std::string& program) {
  return fmt::format(
      "usage: {} [--json FILE] [--repeat N] [--quick] [--filter SUBSTR]\n"
      "  --json FILE      write every sample and verdict, and the machine, as JSON\n"
      "  --repeat N       samples of each side of a bar (default {}, with --quick {})\n"
      "  --quick          a tenth of the iterations: a smoke run, not a result to publish\n"
      "  --filter SUBSTR  only the bars whose 'area.name' contains SUBSTR\n"
      "  --help           this text\n"
      "exit status: 0 every bar ok or skipped, 1 a bar is missed, 2 bad usage or no bar matches\n",
      program, Options{}.repeat, kQuickRepeat);
}

}  // namespace slip::bench
