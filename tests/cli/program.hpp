// Running the program as a user does, and reading what it says.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace slip::cli_test {

struct Outcome {
  int status = -1;  // exit status; below 0: a signal ended it
  std::string out, err;
};

Outcome run(const std::string& arguments);

// Runs it on a terminal of its own, and presses Ctrl-C (SIGINT) once it has shown this text.
struct Interrupted {
  int status = -1;
  std::string terminal;
};
Interrupted interrupt_when(const std::string& arguments, const std::string& shown);

// All that it prints on a terminal of its own with so many columns.
std::string on_terminal(const std::string& arguments, unsigned short columns);

// A file of this name in a folder of this process; removed at exit.
std::string scratch(const std::string& name);
std::string read_file(const std::string& path);

// `slip lab NAME --device DEVICE --json ...`: the lab's tables. Fails the test when it does not succeed.
nlohmann::json lab_tables(const std::string& name, const std::string& device, const std::string& more = "");

std::size_t lines(const std::string& text);
std::size_t max_line(const std::string& text);

}  // namespace slip::cli_test
