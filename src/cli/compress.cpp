// `slip compress` and `slip decompress`: the weights of a model in fewer bytes, and back.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "base/clock.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "model/compressed_files.hpp"

namespace slip::cli {
namespace {

struct CompressCommand {
  std::string from, to, json;
  bool resume = false;
};

// The progress, on one line of a terminal that is overwritten at most ten times a second.
class ProgressLine {
 public:
  void show(const model::FilesProgress& progress) {
    if (!on_terminal_) return;
    const std::int64_t now = base::now_ns();
    if (now - shown_ns_ < 100'000'000 && progress.done < progress.total) return;
    shown_ns_ = now;
    const double seconds = 1e-9 * static_cast<double>(now - start_ns_);
    const double share =
        progress.total == 0 ? 100.0 : 100.0 * static_cast<double>(progress.done) / static_cast<double>(progress.total);
    const std::string amounts =
        fmt::format(": {} of {}, {:.0f} %, {}", base::format_bytes(progress.done), base::format_bytes(progress.total),
                    share, base::format_rate(static_cast<double>(progress.done) / (seconds > 0 ? seconds : 1)));
    fmt::print(stderr, "\r\033[K{}{}", end_of(base::single_line_text(progress.file), amounts.size()), amounts);
    std::fflush(stderr);
    any_ = true;
  }
  ~ProgressLine() {
    if (any_) fmt::print(stderr, "\r\033[K");
  }

 private:
  // The end of a path for which the terminal has room beside `others` characters: a longer line would wrap, and "\r"
  // returns only to the beginning of its last row.
  static std::string end_of(const std::string& path, std::size_t others) {
    const std::size_t columns = terminal_columns(80), room = columns > others + 4 ? columns - others - 1 : 3;
    if (path.size() <= room) return path;
    std::size_t from = path.size() - (room - 3);
    while (from < path.size() && (static_cast<unsigned char>(path[from]) & 0xC0) == 0x80) ++from;  // within a character
    return "..." + path.substr(from);
  }

  bool on_terminal_ = ::isatty(STDERR_FILENO) != 0;
  bool any_ = false;
  std::int64_t start_ns_ = base::now_ns(), shown_ns_ = 0;
};

using Convert = model::FilesResult(const std::string& from, const std::string& to, const model::FilesOptions& options,
                                   Here here);

int convert(const CompressCommand& wanted, Convert* call) {
  const std::int64_t start = base::now_ns();
  model::FilesResult result;
  {
    ProgressLine line;
    result = call(wanted.from, wanted.to,
                  {.resume = wanted.resume, .progress = [&](const model::FilesProgress& now) { line.show(now); }}, {});
  }
  const double seconds = 1e-9 * static_cast<double>(base::now_ns() - start);
  const double ratio = result.compressed_bytes == 0
                           ? 1.0
                           : static_cast<double>(result.original_bytes) / static_cast<double>(result.compressed_bytes);
  const std::string kept = result.kept == 0 ? "" : fmt::format("; {} of the tensors existed already", result.kept);
  fmt::print("{}: {} tensors in {}, {} as {} ({:.3f}x), {}{}\n", wanted.to, result.tensors,
             counted(result.files, "file"), base::format_bytes(result.original_bytes),
             base::format_bytes(result.compressed_bytes), ratio,
             base::format_rate(static_cast<double>(result.original_bytes) / seconds), kept);
  write_json(wanted.json, {{"slip", SLIP_VERSION},
                           {"files", result.files},
                           {"tensors", result.tensors},
                           {"kept_tensors", result.kept},
                           {"original_bytes", result.original_bytes},
                           {"compressed_bytes", result.compressed_bytes},
                           {"ratio", ratio},
                           {"seconds", seconds}});
  return kSuccess;
}

std::function<int()> add(CLI::App& app, const char* name, const char* text, const char* footer, Convert* call) {
  auto wanted = std::make_shared<CompressCommand>();
  CLI::App* command = app.add_subcommand(name, text);
  command->footer(footer);
  command->add_option("MODEL", wanted->from, "A folder with *.safetensors files, or one such file")->required();
  command->add_option("-o,--output", wanted->to, "Folder to write; it must be empty or absent")->required();
  command->add_flag("--resume", wanted->resume,
                    "Continue an interrupted call: compare the tensors that exist, write the others");
  add_output(*command, "--json", wanted->json, "Write the sizes as JSON");
  return [wanted, call] { return convert(*wanted, call); };
}

}  // namespace

std::function<int()> add_compress(CLI::App& app) {
  return add(app, "compress", "Write the weights of a model in fewer bytes, without loss",
             "\nThe files are safetensors files, whose tensors hold compressed blocks with checksums. Each block is\n"
             "decoded again and compared before it is written. Other files of the folder are copied. f16 and f32\n"
             "shrink less than bf16; other types are stored as they are. `slip decompress` gives the files back.",
             model::compress_files);
}

std::function<int()> add_decompress(CLI::App& app) {
  return add(app, "decompress", "Give back the files that `slip compress` has read, byte for byte",
             "\nThe checksum of each block is verified before its weights are written. A damaged file gives an error "
             "with the file,\n"
             "the tensor and the block, and no output file.",
             model::decompress_files);
}

}  // namespace slip::cli
