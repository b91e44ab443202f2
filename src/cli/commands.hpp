// The commands of the program. add_X() adds command X to the parser and returns the function that runs it. main() calls
// that function after parsing; its result is the exit status.
#pragma once

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/embedded.hpp"
#include "slip/device.hpp"
#include "slip/trace.hpp"

namespace CLI {  // NOLINT(readability-identifier-naming): of the library CLI11
class App;
class Option;
class Validator;
}  // namespace CLI

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
std::function<int()> add_compress(CLI::App& app);
std::function<int()> add_decompress(CLI::App& app);
std::function<int()> add_plan(CLI::App& app);
std::function<int()> add_run(CLI::App& app);
std::function<int()> add_bench(CLI::App& app);
std::function<int()> add_weights_bench(CLI::App& bench);       // of `slip bench`
std::function<int()> add_collective_benches(CLI::App& bench);  // of `slip bench`
std::function<int()> add_launch(CLI::App& app);
std::function<int()> add_agent(CLI::App& app);  // hidden: runs the ranks of one host for add_launch()
std::function<int()> add_topo(CLI::App& app);
std::function<int()> add_ranks(CLI::App& app);
std::function<int()> add_help(CLI::App& app);
std::function<int()> add_generate(CLI::App& app);   // hidden: writes the man page and completions
std::function<int()> add_one_queue(CLI::App& app);  // hidden: a case of a lab that needs a process of its own

// --- Options that name an output. One rule for every command: `--json [FILE]` (and `--html`, `--trace`, ...) writes to
// FILE. Without FILE, or with `-`, the data go to the standard output and the usual text is not printed. Paths are
// checked before the work begins. ---

enum class OutputUse {
  kHere,        // this process writes it
  kElsewhere,   // another rank writes it
  kByChildren,  // the ranks that this process starts write it, also to the standard output
};

// `path` becomes empty if the option is not given, and "-" for the standard output.
CLI::Option* add_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text,
                        OutputUse use = OutputUse::kHere);
// The same for an option that requires FILE, like -o.
CLI::Option* add_named_output(CLI::App& command, const std::string& option, std::string& path, const std::string& text);

// main() calls it after parsing, before any work. It throws if a path cannot be written or two outputs have the same
// path. If an output goes to the standard output, other text is no longer printed there.
void open_outputs();

// The option that may have taken the command's argument `value` as its FILE, for example "--json"; empty: none. An
// empty `value` stands for any argument.
std::string option_that_took(const std::string& value);

// Replaces the file atomically, or throws kIo with the path and the reason.
void write_file(const std::string& path, std::string_view text);

// --- Arguments that name an input: numbers within limits, devices, and traces. A wrong one throws UsageError. ---

// A number within these limits. CLI::Range accepts NaN; this does not.
CLI::Validator number_between(double min, double max);

bool has_backend(std::string_view prefix);  // "cpu", "sim", "cuda": compiled into this program
// Throws UsageError if the device cannot be opened, with the reason and the names of the devices that can.
Device open_device(const std::string& name, const DeviceOptions& options = {});

struct NamedTrace {
  std::string name;  // the file name; of a merged trace "run.0.json and 3 more: ranks 0 to 3"
  TraceData data;
};

// Each file separately; files of one job's ranks are merged into one trace.
std::vector<NamedTrace> read_traces(const std::vector<std::string>& paths);

// --- What the parser knows about commands and options, for help texts, completions and errors that name the
// alternatives. ---

std::vector<const CLI::App*> commands_of(const CLI::App& app);     // without hidden commands
std::vector<const CLI::Option*> options_of(const CLI::App& app);   // without positional arguments
std::vector<std::string> option_names(const CLI::Option& option);  // "-n", "--ranks"
std::vector<std::string> command_names(const CLI::App& app);
std::string line_of(const CLI::App& app);  // "slip bench all_reduce"
// The end of an error about an unknown word: ": did you mean all_reduce? There are ...".
std::string allowed(std::string_view typed, const std::vector<std::string>& words);

std::span<const base::EmbeddedFile> completion_scripts();  // of cli/completion, by shell

// The commit of the source tree at build time: "1a2b3c4d5e6f", "... with changes", or "unknown" without git.
extern const char* const kCommit;

std::string version_text();  // "slip 0.1.0, commit 1a2b3c4d5e6f, CUDA: no"

// Writes the timeline page of a trace and prints its path; for `slip view` and every --html.
void write_html(const TraceData& trace, const std::string& page, const std::string& title,
                const TraceData* prediction = nullptr);

}  // namespace slip::cli
