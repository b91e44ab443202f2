// The commands of the program. add_X() adds command X to the parser and returns the function that runs it. main() calls
// that function after parsing; its result is the exit status.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include "cli/outputs.hpp"

namespace CLI {
class App;
}

namespace slip {
struct TraceData;
}

namespace slip::cli {

// Exit statuses of the program.
inline constexpr int kSuccess = 0;
inline constexpr int kFailed = 1;    // the command line was valid, but the command failed
inline constexpr int kBadUsage = 2;  // unknown command, option or value

// An invalid command line. The text is one line: the value, and what is allowed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::function<int()> add_devices(CLI::App& app);
std::function<int()> add_lab(CLI::App& app);
std::function<int()> add_check(CLI::App& app);
std::function<int()> add_stats(CLI::App& app);
std::function<int()> add_view(CLI::App& app);
std::function<int()> add_model(CLI::App& app);
std::function<int()> add_plan(CLI::App& app);
std::function<int()> add_run(CLI::App& app);
std::function<int()> add_bench(CLI::App& app);
std::function<int()> add_weights_bench(CLI::App& bench);       // of `slip bench`
std::function<int()> add_collective_benches(CLI::App& bench);  // of `slip bench`
std::function<int()> add_launch(CLI::App& app);
std::function<int()> add_topo(CLI::App& app);
std::function<int()> add_ranks(CLI::App& app);
std::function<int()> add_help(CLI::App& app);
std::function<int()> add_generate(CLI::App& app);  // hidden: writes the man page and completions

// Writes the timeline page of a trace and prints its path; for `slip view` and every --html.
void write_html(const TraceData& trace, const std::string& page, const std::string& title,
                const TraceData* prediction = nullptr);

}  // namespace slip::cli
