// Command line of every benchmark program.
#pragma once

#include <string>

namespace slip::bench {

struct Options {
  int repeat = 7;
  bool quick = false;
  bool help = false;
  std::string json_file;
  std::string filter;
  std::string command_line;
};

// Throws std::invalid_argument with a text for the user.
Options parse_options(int argc, const char* const* argv);

std::string usage_text(const std::string& program);

}  // namespace slip::bench
