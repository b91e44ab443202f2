// The commands of the program. Each adds itself to the parser; what it returns does the work once the line is parsed
// and gives the exit status.
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
inline constexpr int kFailed = 1;    // it was asked rightly and could not
inline constexpr int kBadUsage = 2;  // it was asked for something that does not exist

// A command line that cannot be right: one line that names the value and what is allowed.
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

// Writes the timeline page of a trace and says so: what `slip view` does and every --html.
void write_html(const TraceData& trace, const std::string& page, const std::string& title,
                const TraceData* prediction = nullptr);

}  // namespace slip::cli
