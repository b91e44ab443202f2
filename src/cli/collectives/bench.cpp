// `slip bench all_reduce` and the other collectives, with the options, columns and bandwidths of nccl-tests.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/thread.hpp"
#include "cli/collectives/measure.hpp"
#include "cli/commands.hpp"
#include "cli/text.hpp"
#include "comm/api/options.hpp"
#include "transport/job/job.hpp"
#include "transport/job/launch_info.hpp"

namespace slip::cli {
namespace {

struct BenchOptions {
  BenchWork work;  // sizes, types and algorithms are set from the texts below
  int ranks = 2;
  std::string begin = "8", end = "32MiB", type = "F32", op = "sum", algorithm = "auto", transport = "auto", html, json;
  bool threads = false;
};

// Name of the command: "sendrecv" for messages.
const char* bench_name(comm::Collective kind) {
  return kind == comm::Collective::kMessage ? "sendrecv" : comm::collective_name(kind);
}

BenchWork work_of(const BenchOptions& wanted) {
  BenchWork work = wanted.work;
  work.begin = size_of(wanted.begin, "-b");
  work.end = size_of(wanted.end, "-e");
  if (work.predict && work.device != "cpu") throw UsageError("--predict: only times on cpu can be predicted");
  if (work.end < work.begin)
    throw UsageError(fmt::format("-b {} -e {}: the first size is larger than the last", wanted.begin, wanted.end));
  const std::optional<DataType> type = data_type_of(wanted.type);
  if (!type || !can_reduce(*type))
    throw UsageError(fmt::format("-d {}: one of I8 U8 I32 U32 I64 U64 F16 BF16 F32 F64 F8_E4M3 F8_E5M2", wanted.type));
  const std::optional<ReduceOp> op = reduce_op_of(wanted.op);
  if (!op || *op == ReduceOp::kPreMulSum)
    throw UsageError(fmt::format("-o {}: one of sum prod min max avg", wanted.op));
  const std::optional<Algorithm> algorithm = comm::algorithm_of(wanted.algorithm);
  if (!algorithm)
    throw UsageError(fmt::format("--algorithm {}: one of auto direct ring tree doubling relay", wanted.algorithm));
  const std::optional<Transport> transport = comm::transport_of(wanted.transport);
  if (!transport) throw UsageError(fmt::format("--transport {}: auto or net", wanted.transport));
  work.type = *type;
  work.op = *op;
  work.options.algorithm = *algorithm;
  work.options.transport = *transport;
  return work;
}

std::string settings_text(const BenchOptions& wanted) {
  std::string text = fmt::format("{} calls after {} to warm up, {}", wanted.work.iterations, wanted.work.warmup,
                                 wanted.work.each ? "each waited for" : "waited for once");
  if (wanted.work.registered) text += ", registered buffers";
  if (wanted.threads) text += ", ranks are threads";
  if (wanted.algorithm != "auto") text += ", algorithm " + wanted.algorithm;
  if (wanted.transport != "auto") text += ", transport " + wanted.transport;
  return text;
}

// The table, in the format of nccl-tests.
void print_head(const BenchOptions& wanted, int nranks, const std::string& device) {
  fmt::print("# {} of {} ranks on {}, {}\n", bench_name(wanted.work.kind), nranks, device, settings_text(wanted));
  fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6}   {:^34}   {:^34}\n", "", "", "", "", "", "out of place", "in place");
  const auto more = [&](const char* text) { return wanted.work.predict ? fmt::format(" {:>10}", text) : ""; };
  fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}{}\n", "size", "count",
             "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong",
             more("predicted"));
  fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}{}\n", "(B)",
             "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "", more("(us)"));
}

void print_row(const BenchRow& row) {
  const auto columns = [](const Measured& one) {
    return fmt::format("{:>10.2f} {:>8.2f} {:>8.2f} {:>7}", one.us, one.algorithm_gbs, one.bus_gbs, one.wrong);
  };
  fmt::print(" {:>11} {:>13} {:>8} {:>7} {:>6} {} {}{}\n", row.bytes, row.call.elements, data_type_name(row.call.type),
             row.op(), row.root(), columns(row.apart),
             row.in_place ? columns(*row.in_place) : fmt::format("{:>10} {:>8} {:>8} {:>7}", "-", "-", "-", "-"),
             row.predicted_us ? fmt::format(" {:>10.2f}", *row.predicted_us) : "");
  std::fflush(stdout);
}

Json json_of(const BenchRow& row) {
  const auto half = [](const Measured& one) {
    return Json{
        {"time_us", one.us}, {"algbw_gb_s", one.algorithm_gbs}, {"busbw_gb_s", one.bus_gbs}, {"wrong", one.wrong}};
  };
  Json json{{"collective", bench_name(row.call.kind)},
            {"ranks", row.nranks},
            {"bytes", row.bytes},
            {"elements", row.call.elements},
            {"type", data_type_name(row.call.type)},
            {"op", row.op()},
            {"out_of_place", half(row.apart)},
            {"in_place", row.in_place ? half(*row.in_place) : Json()}};
  if (row.predicted_us) json["predicted_us"] = *row.predicted_us;
  return json;
}

// Runs one rank; rank 0 prints.
int run_rank(const BenchOptions& wanted, const BenchWork& work, const ThreadRank* rank = nullptr) {
  Json json = Json::array();
  std::string title, facts;
  const auto on_head = [&](int nranks, const std::string& device) {
    title = fmt::format("{}, {} ranks", bench_name(wanted.work.kind), nranks);
    facts = fmt::format("{}; {}", device, settings_text(wanted));
    print_head(wanted, nranks, device);
  };
  const auto on_row = [&](const BenchRow& row) {
    json.push_back(json_of(row));
    print_row(row);
  };
  const std::vector<BenchRow> rows = measure_sizes(work, {on_head, on_row}, rank);
  std::uint64_t wrong = 0;
  for (const BenchRow& row : rows) wrong += row.apart.wrong + (row.in_place ? row.in_place->wrong : 0);
  if (!title.empty()) {  // set on rank 0 only
    if (!wanted.html.empty()) write_file(wanted.html, bench_page(title, facts, rows));
    write_json(wanted.json, json);
    fmt::print("# wrong elements: {}\n", wrong);
    if (!wanted.html.empty()) fmt::print("page: {} (opens in any browser)\n", wanted.html);
  }
  return wrong == 0 ? kSuccess : kFailed;
}

// Runs all ranks as threads of this process.
int run_threads(const BenchOptions& wanted, const BenchWork& work) {
  const UniqueId id = UniqueId::create({.host = "127.0.0.1"});
  std::vector<int> results(static_cast<std::size_t>(wanted.ranks), kFailed);
  base::run_threads("slip-rank", results.size(), [&](std::size_t i) {
    const ThreadRank rank{id, wanted.ranks, static_cast<int>(i)};
    results[i] = run_rank(wanted, work, &rank);
  });
  return *std::ranges::max_element(results);
}

// The command line of this program. The ranks get the same one: with the variables of a launcher they do not start
// ranks themselves.
std::vector<std::string> own_command() {
  std::vector<std::string> words;
  std::ifstream line("/proc/self/cmdline");
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error || words.empty())
    throw Error(ErrorCode::kIo,
                "cannot read /proc/self, which has the path and the arguments of this program: is /proc mounted?");
  words.front() = program.string();
  return words;
}

// Runs as a rank if a launcher started this process; otherwise launches the ranks.
int run_bench(const BenchOptions& wanted) {
  const BenchWork work = work_of(wanted);
  if (transport::launch_info()) return run_rank(wanted, work);
  if (wanted.threads) return run_threads(wanted, work);
  transport::LocalJob job;
  job.nranks = wanted.ranks;
  job.command = own_command();
  return transport::run_local_job(job);
}

// Rank 0 writes the files. Contradicting variables of a launcher are reported when the command runs.
OutputUse output_use() {
  try {
    const std::optional<transport::LaunchInfo> info = transport::launch_info();
    if (!info) return OutputUse::kByChildren;
    return info->rank == 0 ? OutputUse::kHere : OutputUse::kElsewhere;
  } catch (const Error&) {
    return OutputUse::kByChildren;
  }
}

std::string footer_of(comm::Collective kind) {
  const std::string sizes =
      kind == comm::Collective::kMessage
          ? "Each rank sends `size` bytes to the\n"
            "next one and receives as many from the one before, as one group; algbw and busbw "
            "are both size / time."
          : "`size` is the larger of a rank's\n"
            "input and output, algbw is size / time, and busbw is algbw times the share of the data "
            "that must\ncross each link.";
  return fmt::format(
      "\nColumns and bandwidths are those of nccl-tests. {}\n"
      "Times are the slowest rank's; every result is checked.\n"
      "This command starts -n ranks. Under slip launch, mpirun, srun or torchrun it is one of their ranks instead.\n"
      "SLIP_DEBUG=tune prints which algorithm was chosen. SLIP_NCCL=FILE or auto: NVIDIA's NCCL carries the calls of\n"
      "ranks on GPUs. Examples:\n"
      "  slip bench {} -n 4 -b 8 -e 256M -f 4\n"
      "  slip bench {} -n 4 --transport net --html speed.html",
      sizes, bench_name(kind), bench_name(kind));
}

}  // namespace

std::function<int()> add_collective_benches(CLI::App& bench) {
  auto wanted = std::make_shared<BenchOptions>();
  const OutputUse use = output_use();
  for (const comm::Collective kind : kCollectives) {
    const bool messages = kind == comm::Collective::kMessage;
    CLI::App* one =
        bench.add_subcommand(bench_name(kind), messages ? "Each rank to the next: time and bandwidth by size"
                                                        : "Ranks of this host: time and bandwidth by size");
    one->footer(footer_of(kind));
    one->option_defaults()->always_capture_default();
    one->add_option("-n,--ranks", wanted->ranks, "Processes to start")->check(CLI::Range(1, 1024));
    one->add_option("-b,--begin", wanted->begin, "Smallest size");
    one->add_option("-e,--end", wanted->end, "Largest size");
    one->add_option("-f,--factor", wanted->work.factor, "Factor from one size to the next")
        ->check(number_between(1.0001, 1e9));
    one->add_option("--iters", wanted->work.iterations, "Number of timed calls")->check(CLI::Range(1, 1 << 30));
    one->add_option("-w,--warmup", wanted->work.warmup, "Number of warm-up calls")->check(CLI::Range(0, 1 << 30));
    one->add_option("-d,--datatype", wanted->type, "I8 U8 I32 U32 I64 U64 F16 BF16 F32 F64 F8_E4M3 F8_E5M2");
    if (comm::reduces(kind)) one->add_option("-o,--op", wanted->op, "sum prod min max avg");
    if (comm::has_root(kind)) one->add_option("-r,--root", wanted->work.root, "Rank of the root");
    if (!messages)
      one->add_option("--algorithm", wanted->algorithm,
                      "auto direct ring tree doubling relay; used for the calls it supports");
    one->add_option("--transport", wanted->transport, "auto: shared memory within a host; net: TCP even within a host");
    one->add_option("--device", wanted->work.device, "Device of each rank: cpu, or cuda:0 for ranks that share a GPU");
    one->add_flag("--threads", wanted->threads, "Ranks are threads of one process, not processes");
    one->add_flag("--registered", wanted->work.registered,
                  "Use buffers of Communicator::allocate, which all ranks can access");
    one->add_flag("--each", wanted->work.each, "Wait for each call, not once for all");
    if (!messages)
      one->add_flag("--predict", wanted->work.predict,
                    "Also print the time that a simulation with the measured link rates predicts");
    add_output(*one, "--json", wanted->json, "Write the table as JSON", use);
    add_output(*one, "--html", wanted->html, "Write a page with plots of time and bus bandwidth, and the table", use);
    one->callback([wanted, kind] { wanted->work.kind = kind; });
  }
  return [wanted] { return run_bench(*wanted); };
}

std::function<int()> add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure a model with less and less memory, or collectives by size");
  bench->require_subcommand(1);
  bench->footer(
      "\nCollectives and sendrecv start ranks on this host, or are the ranks that a launcher started:\n"
      "  slip bench all_reduce -n 4 -b 8 -e 256M -f 4          by size, in the columns of nccl-tests\n"
      "  slip bench sendrecv -n 2 --transport net              over TCP instead of shared memory\n"
      "  slip bench all_reduce --algorithm ring --html r.html  one algorithm, as a page with plots\n"
      "  slip bench all_reduce --device cuda:0 -e 256M         ranks that share a GPU\n"
      "  slip launch -n 8 slip bench all_gather                with ranks started by a launcher\n"
      "For the options see slip bench NAME --help.");
  const std::function<int()> weights = add_weights_bench(*bench), collectives = add_collective_benches(*bench);
  return [bench, weights, collectives] { return bench->got_subcommand("weights") ? weights() : collectives(); };
}

}  // namespace slip::cli
