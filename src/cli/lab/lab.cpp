// `slip lab`: the list of labs, the report that a lab fills, the command that runs them, and the hidden command that
// runs one case of a lab in a process of its own.
#include "cli/lab/lab.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/env.hpp"
#include "cli/commands.hpp"
#include "cli/lab/bench.hpp"
#include "store/file.hpp"
#include "transport/job/job.hpp"
#include "transport/job/launch_info.hpp"

namespace slip::cli {

void Report::ask(std::string_view text) {
  question_ = text;
  print(fmt::format("{}\n{}\n", name_, std::string(name_.size(), '=')));
  print(paragraph(text));
}

void Report::show(Table table) {
  print(fmt::format("\n{}", table.text()));
  keep(std::move(table));
}

void Report::print(std::string_view text) const {
  fmt::print("{}", text);
  std::fflush(stdout);
}

std::string borne_out(std::string_view claim, bool shown) {
  return fmt::format("{}{}", claim, shown ? "" : " (this run did not show it)");
}

void Report::conclude(std::string_view text) {
  conclusion_ = text;
  print(fmt::format("\n{}\n", paragraph(text, 4, "  = ")));
}

Json Report::json() const {
  Json tables = Json::array();
  for (const Table& table : tables_) tables.push_back({{"title", table.title()}, {"rows", json_of(table)}});
  return {{"name", name_}, {"question", question_}, {"tables", std::move(tables)}, {"conclusion", conclusion_}};
}

std::span<const Lab> labs() {
  static constexpr std::array kLabs = {
      Lab{"overlap", "copies that overlap kernels: streams, chunks, issue order, pinned memory", lab_overlap},
      Lab{"host", "which calls block the host, and which return at once", lab_host},
      Lab{"default-stream", "what the default stream orders: blocking, non-blocking, per-thread", lab_default_stream},
      Lab{"weights", "four layers in two weight slots instead of four: memory against time", lab_weights},
      Lab{"compress", "weights in fewer bytes: information by field, ratio, and on which links it pays", lab_compress},
      Lab{"hook", "a gradient hook that waits for communication: same stream, own stream, one queue", lab_hook},
      Lab{"gradients", "reducing gradients: compute stream, own stream, one queue, DDP's buckets, planned",
          lab_gradients},
      Lab{"events", "how many events the two slots need: five edges, three events or one", lab_events},
      Lab{"deadlock", "ranks that use two communicators in different orders; a rank that waits for a pipe",
          lab_deadlock, true},
      Lab{"questions", "questions that learners of streams ask, each answered by an experiment", lab_questions},
  };
  return kLabs;
}

namespace {

struct LabCommand {
  LabOptions options;
  std::string name, size, trace, html, json;
  bool list = false;
};

const Lab& find_lab(const std::string& name) {
  std::vector<std::string> known;
  for (const Lab& lab : labs()) {
    if (lab.name == name) return lab;
    known.emplace_back(lab.name);
  }
  throw UsageError(fmt::format("no lab '{}'{}", name, allowed(name, known)));
}

void check(LabCommand& wanted) {
  if (!wanted.size.empty()) {
    constexpr std::uint64_t kMin = 4096, kMax = 1ULL << 30;
    if (!base::parse_bytes(wanted.size, wanted.options.bytes) || wanted.options.bytes < kMin ||
        wanted.options.bytes > kMax || wanted.options.bytes % kMin != 0)
      throw UsageError(
          fmt::format("--size '{}': a multiple of 4KiB from 4KiB to 1GiB is allowed, like 64KiB or 4MiB", wanted.size));
  }
  const auto limit = [](const char* option, std::optional<int> value, int min, int max) {
    if (value && (*value < min || *value > max))
      throw UsageError(fmt::format("{} {}: {} to {} are allowed", option, *value, min, max));
  };
  limit("--chunks", wanted.options.chunks, 2, 64);
  limit("--layers", wanted.options.layers, 2, 64);
  limit("--nodes", wanted.options.nodes, 1, 1 << 17);
  limit("--ranks", wanted.options.ranks, 2, 4);
  // Without this check `slip lab --json weights` would run all labs and write a file named weights.
  for (const std::string& file : {wanted.json, wanted.html, wanted.trace}) {
    if (wanted.name.empty() && std::ranges::any_of(labs(), [&](const Lab& lab) { return lab.name == file; }))
      throw UsageError(
          fmt::format("{0} took the lab '{1}' as its FILE: put it behind the lab, as in `slip lab {1} {0}`",
                      option_that_took(file), file));
  }
}

int list_labs() {
  for (const Lab& lab : labs()) fmt::print("  {:<15} {}\n", lab.name, lab.summary);
  return kSuccess;
}

void write_timeline(const LabCommand& wanted, const TraceData& trace) {
  if (!wanted.trace.empty()) {
    write_trace(trace, wanted.trace, {});
    fmt::print("timeline: {} (open it in ui.perfetto.dev or chrome://tracing)\n", wanted.trace);
  }
  if (!wanted.html.empty())
    write_html(trace, wanted.html,
               fmt::format("slip lab{}{} on {}", wanted.name.empty() ? "" : " ", wanted.name, wanted.options.device));
}

std::string time_text(const Bench& bench, const std::vector<Lab>& chosen) {
  if (!bench.virtual_time()) return "";
  const auto real = std::ranges::count_if(chosen, &Lab::real_time);
  if (real == 0) return ", in virtual time: figures are exact";
  const std::string waits = "waits for deadlines in real time: its ranks are threads that wait for each other";
  if (chosen.size() == 1) return fmt::format(", which has virtual time; lab {} {}", chosen.front().name, waits);
  return fmt::format(", in virtual time: figures are exact; only lab {} {}",
                     std::ranges::find_if(chosen, &Lab::real_time)->name, waits);
}

int run_labs(LabCommand wanted) {
  if (wanted.list) return list_labs();
  check(wanted);
  std::vector<Lab> chosen;
  if (wanted.name.empty()) chosen.assign(labs().begin(), labs().end());
  else chosen.push_back(find_lab(wanted.name));
  const Bench bench(wanted.options);
  if (bench.virtual_time() && wanted.options.ranks)
    throw UsageError(
        "--ranks works on cpu and cuda only; on sim, --topology FILE and --nodes N determine the number of ranks");
  std::optional<Trace> trace;
  if (!wanted.trace.empty() || !wanted.html.empty()) trace.emplace();
  fmt::print("{}\n", paragraph(fmt::format("device: {} ({}){}", bench.options().device, bench.open().info().description,
                                           time_text(bench, chosen))));
  Json found = Json::array();
  for (const Lab& lab : chosen) {
    Report report{std::string(lab.name)};
    lab.run(bench, report);
    found.push_back(report.json());
  }
  write_json(wanted.json, {{"slip", SLIP_VERSION}, {"device", bench.options().device}, {"labs", std::move(found)}});
  if (trace) {
    trace->stop();
    write_timeline(wanted, trace->data());
  }
  return kSuccess;
}

// --- Cases with one hardware queue ---

constexpr std::uint64_t kMaxResultBytes = 1 << 16;

// An empty file in /tmp, into which the child process writes its result. The destructor removes it.
class ResultFile : base::NoCopy {
 public:
  ResultFile() : path_("/tmp/slip-lab-XXXXXX") {
    const int made = ::mkstemp(path_.data());
    if (made < 0) {
      const std::string why = std::strerror(errno);
      throw Error(ErrorCode::kIo, "cannot create a file in /tmp for the result of a lab: " + why, {});
    }
    ::close(made);
  }
  ~ResultFile() { ::unlink(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct OneQueueCommand {
  LabOptions options;
  std::string lab, file;
};

int run_case(const OneQueueCommand& wanted) {
  base::set_cuda_connections(1);
  const Bench bench(wanted.options);
  const base::Json result = wanted.lab == "hook" ? hook_with_one_queue(bench) : gradients_with_one_queue(bench);
  const std::optional<transport::LaunchInfo> rank = transport::launch_info();
  if (!rank || rank->rank == 0) write_file(wanted.file, result.dump());
  return kSuccess;
}

}  // namespace

base::Json run_with_one_queue(const Bench& bench, std::string_view lab, int ranks) {
  const ResultFile file;
  const LabOptions& options = bench.options();
  transport::LocalJob job;
  job.command = {"/proc/self/exe", "one-queue", std::string(lab), file.path(), "--device", options.device};
  if (options.layers) job.command.insert(job.command.end(), {"--layers", std::to_string(*options.layers)});
  if (options.quick) job.command.emplace_back("--quick");
  job.changes["CUDA_DEVICE_MAX_CONNECTIONS"] = "1";
  job.changes["SLIP_MAX_CONNECTIONS"] = "1";  // the user's number would contradict the other variable
  job.nranks = ranks;
  job.timeout = std::chrono::minutes(2);
  if (const int status = transport::run_local_job(job); status != 0)
    throw Error(ErrorCode::kLaunchFailed,
                fmt::format("lab {}: the case with one hardware queue ended with status {}", lab, status), {});
  return base::parse_json(store::read_text(file.path(), kMaxResultBytes, "the result of a lab", {}), kResultOfCase,
                          kMaxResultBytes);
}

std::function<int()> add_lab(CLI::App& app) {
  auto wanted = std::make_shared<LabCommand>();
  CLI::App* lab = app.add_subcommand("lab", "Run the experiments on streams: one by NAME, or all in order");
  lab->add_option("NAME", wanted->name, "The lab; without it all of them run (see --list)");
  lab->add_flag("--list", wanted->list, "List the labs");
  lab->add_option("--device", wanted->options.device,
                  "cpu, cuda:0, sim:h200, sim:a100, sim:laptop, or a device file (.json)")
      ->capture_default_str();
  add_output(*lab, "--trace", wanted->trace, "Write the timeline (Chrome trace-event JSON)");
  add_output(*lab, "--html", wanted->html, "Write the timeline as one HTML page");
  add_output(*lab, "--json", wanted->json, "Write the tables as JSON; times in picoseconds");
  lab->add_option("--size", wanted->size, "Size of the data or of a weight, like 4MiB (labs overlap, weights)");
  lab->add_option("--chunks", wanted->options.chunks, "Number of pieces of the data (lab overlap; default 4)");
  lab->add_option("--layers", wanted->options.layers,
                  "Layers of the model (labs weights, hook: default 4; gradients: 12)");
  lab->add_option("--model", wanted->options.model, "Folder or file with the weights to look at (lab compress)");
  lab->add_option("--topology", wanted->options.topology, "Topology XML of the machines (lab gradients, on sim)");
  lab->add_option("--nodes", wanted->options.nodes, "Number of machines of --topology (lab gradients; default 1)");
  lab->add_option("--ranks", wanted->options.ranks,
                  "Number of ranks (lab gradients, on cpu and cuda; 2 to 4, default 2)");
  lab->add_flag("--quick", wanted->options.quick, "Smaller sizes and fewer runs");
  return [wanted] { return run_labs(*wanted); };
}

std::function<int()> add_one_queue(CLI::App& app) {
  auto wanted = std::make_shared<OneQueueCommand>();
  CLI::App* command = app.add_subcommand("one-queue", "One case of a lab on a GPU, for `slip lab`");
  command->group("");
  command->add_option("LAB", wanted->lab, "hook or gradients")->required()->check(CLI::IsMember({"hook", "gradients"}));
  command->add_option("FILE", wanted->file, "Where rank 0 writes its result")->required();
  command->add_option("--device", wanted->options.device, "cuda:0")->required();
  command->add_option("--layers", wanted->options.layers, "Layers of the model");
  command->add_flag("--quick", wanted->options.quick, "Shorter kernels and fewer runs");
  return [wanted] { return run_case(*wanted); };
}

}  // namespace slip::cli
