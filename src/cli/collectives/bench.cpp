// `slip bench all_reduce` and the like: options, columns and bandwidths of nccl-tests.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/clock.hpp"
#include "cli/collectives/bandwidth.hpp"
#include "cli/collectives/pattern.hpp"
#include "cli/commands.hpp"
#include "slip/communicator.hpp"
#include "transport/launch_info.hpp"
#include "transport/local_job.hpp"

namespace slip::cli {
namespace {

struct Asked {
  Collective kind = Collective::kAllReduce;
  int ranks = 2, root = 0, iterations = 20, warmup = 5;
  std::string begin = "8", end = "32MiB", type = "F32", op = "sum";
  double factor = 2;
  bool json = false, each = false, registered = false;
};

struct Limits {
  std::uint64_t begin = 0, end = 0;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
};

Limits limits_of(const Asked& asked) {
  Limits limits{size_of(asked.begin, "-b"), size_of(asked.end, "-e"), {}, {}};
  if (limits.end < limits.begin)
    throw UsageError(fmt::format("-b {} -e {}: the first size is larger than the last", asked.begin, asked.end));
  const std::optional<DataType> type = data_type_of(asked.type);
  if (!type || !can_reduce(*type))
    throw UsageError(fmt::format("-d {}: one of I8 U8 I32 U32 I64 U64 F16 BF16 F32 F64 F8_E4M3 F8_E5M2", asked.type));
  const std::optional<ReduceOp> op = reduce_op_of(asked.op);
  if (!op || *op == ReduceOp::kPreMulSum) throw UsageError(fmt::format("-o {}: one of sum prod min max avg", asked.op));
  limits.type = *type;
  limits.op = *op;
  return limits;
}

struct Measured {
  double us = 0;  // of the slowest rank
  std::uint64_t wrong = 0;
};

// One rank of the benchmark.
class Bench {
 public:
  Bench(const Asked& asked, const Limits& limits)
      : asked_(asked), limits_(limits), comm_(Communicator::init(device_)), stream_(device_.stream()) {
    if (asked.root < 0 || asked.root >= comm_.nranks())
      throw UsageError(fmt::format("-r {}: there are {} ranks", asked.root, comm_.nranks()));
  }

  int run() {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    std::uint64_t wrong = 0;
    if (is_first() && !asked_.json) print_head();
    for (double size = static_cast<double>(limits_.begin); size <= static_cast<double>(limits_.end);) {
      wrong += one_size(static_cast<std::uint64_t>(size), rows);
      size = std::max(size * asked_.factor, size + 1);
    }
    if (is_first() && asked_.json) fmt::print("{}\n", rows.dump(2));
    if (is_first() && !asked_.json) fmt::print("# wrong elements: {}\n", wrong);
    return wrong == 0 ? kSuccess : kFailed;
  }

 private:
  bool is_first() const { return comm_.rank() == 0; }

  void print_head() const {
    fmt::print("# {} of {} ranks on {}, {}{} calls after {} to warm up, {}\n", collective_name(asked_.kind),
               comm_.nranks(), device_.info().description, asked_.registered ? "registered buffers, " : "",
               asked_.iterations, asked_.warmup, asked_.each ? "each waited for" : "waited for once");
    fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6}   {:^34}   {:^34}\n", "", "", "", "", "", "out of place", "in place");
    fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}\n", "size", "count",
               "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "time", "algbw", "busbw", "#wrong");
    fmt::print("#{:>11} {:>13} {:>8} {:>7} {:>6} {:>10} {:>8} {:>8} {:>7} {:>10} {:>8} {:>8} {:>7}\n", "(B)",
               "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)", "(GB/s)", "(GB/s)", "");
  }

  std::uint64_t one_size(std::uint64_t size, nlohmann::ordered_json& rows) {
    const auto all = static_cast<std::uint64_t>(comm_.nranks());
    Call call{.kind = asked_.kind, .type = limits_.type, .op = limits_.op, .root = asked_.root};
    call.elements =
        std::max<std::uint64_t>(size / bytes_of(limits_.type) / (counts_all_blocks(asked_.kind) ? all : 1), 1);
    const std::uint64_t bytes = call.block_bytes() * (counts_all_blocks(asked_.kind) ? all : 1);
    const Measured apart = measure(call, false);
    const bool has_in_place = asked_.kind != Collective::kAllToAll && asked_.kind != Collective::kGather &&
                              asked_.kind != Collective::kScatter;
    const Measured both = has_in_place ? measure(call, true) : Measured{};
    if (is_first()) tell(call, bytes, apart, has_in_place ? &both : nullptr, rows);
    return apart.wrong + both.wrong;
  }

  void tell(const Call& call, std::uint64_t bytes, const Measured& apart, const Measured* both,
            nlohmann::ordered_json& rows) const {
    const auto algorithm = [&](const Measured& one) { return static_cast<double>(bytes) / one.us / 1e3; };
    const double share = bus_share(call.kind, comm_.nranks());
    const auto half = [&](const Measured& one) {
      return nlohmann::ordered_json{{"time_us", one.us},
                                    {"algbw_gb_s", algorithm(one)},
                                    {"busbw_gb_s", algorithm(one) * share},
                                    {"wrong", one.wrong}};
    };
    if (asked_.json) {
      rows.push_back({{"collective", collective_name(call.kind)},
                      {"ranks", comm_.nranks()},
                      {"bytes", bytes},
                      {"elements", call.elements},
                      {"type", data_type_name(call.type)},
                      {"op", reduces(call.kind) ? reduce_op_name(call.op) : "none"},
                      {"out_of_place", half(apart)},
                      {"in_place", both ? half(*both) : nlohmann::ordered_json()}});
      return;
    }
    const auto columns = [&](const Measured& one) {
      return fmt::format("{:>10.2f} {:>8.2f} {:>8.2f} {:>7}", one.us, algorithm(one), algorithm(one) * share,
                         one.wrong);
    };
    fmt::print(" {:>11} {:>13} {:>8} {:>7} {:>6} {} {}\n", bytes, call.elements, data_type_name(call.type),
               reduces(call.kind) ? reduce_op_name(call.op) : "none",
               has_root(call.kind) ? std::to_string(call.root) : "-1", columns(apart),
               both ? columns(*both) : fmt::format("{:>10} {:>8} {:>8} {:>7}", "-", "-", "-", "-"));
    std::fflush(stdout);
  }

  void issue(const Call& call, Range to, Range from) {
    switch (call.kind) {
      case Collective::kAllReduce: return comm_.all_reduce(to, from, call.type, call.op, stream_);
      case Collective::kReduce: return comm_.reduce(to, from, call.type, call.op, call.root, stream_);
      case Collective::kBroadcast: return comm_.broadcast(to, from, call.root, stream_);
      case Collective::kAllGather: return comm_.all_gather(to, from, stream_);
      case Collective::kReduceScatter: return comm_.reduce_scatter(to, from, call.type, call.op, stream_);
      case Collective::kAllToAll: return comm_.all_to_all(to, from, stream_);
      case Collective::kGather: return comm_.gather(to, from, call.root, stream_);
      case Collective::kScatter: return comm_.scatter(to, from, call.root, stream_);
      case Collective::kBarrier: return comm_.barrier(stream_);
      case Collective::kMessage: break;
    }
  }

  // Private, or with --registered in reach of the other ranks.
  struct Memory {
    Buffer own;
    SharedBuffer shared;
    Buffer& buffer() { return own ? own : shared.buffer(); }
  };
  Memory allocate(std::uint64_t bytes, const char* name) {
    Memory memory;
    if (asked_.registered) memory.shared = comm_.allocate(bytes, name);
    else memory.own = device_.alloc(bytes, MemoryKind::kPinned, name);
    return memory;
  }

  // In place: the smaller of input and output is its part of the larger.
  Measured measure(const Call& call, bool in_place) {
    const Blocks blocks = blocks_of(call, comm_.rank(), comm_.nranks());
    const std::uint64_t block = call.block_bytes(), most = std::max(blocks.in, blocks.out);
    const auto own = static_cast<std::uint64_t>(comm_.rank());
    const auto part = [&](std::uint64_t count) { return count < most && most > 1 ? own * block : 0; };
    Memory larger_memory = allocate(std::max<std::uint64_t>(most * block, 1), "data");
    Memory other_memory = allocate(std::max<std::uint64_t>(in_place ? 1 : most * block, 1), "result");
    Buffer &larger = larger_memory.buffer(), &other = other_memory.buffer();
    const Range from = larger.slice(in_place ? part(blocks.in) : 0, std::max<std::uint64_t>(blocks.in, 1) * block);
    const Range to = in_place ? larger.slice(part(blocks.out), std::max<std::uint64_t>(blocks.out, 1) * block)
                              : other.slice(0, std::max<std::uint64_t>(blocks.out, 1) * block);
    Measured result;
    fill(call, larger, from);
    issue(call, to, from);
    stream_.sync();
    result.wrong = wrong_in(call, in_place ? larger : other, to);
    for (int i = 0; i < asked_.warmup; ++i) issue(call, to, from);
    comm_.barrier(stream_);
    stream_.sync();
    const std::int64_t begun = now_ns();
    for (int i = 0; i < asked_.iterations; ++i) {
      issue(call, to, from);
      if (asked_.each) stream_.sync();
    }
    stream_.sync();
    result.us = static_cast<double>(now_ns() - begun) / 1e3 / asked_.iterations;
    return of_all(result);
  }

  void fill(const Call& call, Buffer& buffer, Range from) const {
    const HostView<std::byte> view = buffer.host_write<std::byte>();
    fill_input(call, comm_.rank(), comm_.nranks(), view.span().subspan(from.offset, from.bytes));
  }
  std::uint64_t wrong_in(const Call& call, const Buffer& buffer, Range to) const {
    const HostView<const std::byte> view = buffer.host_read<std::byte>();
    return count_wrong(call, comm_.rank(), comm_.nranks(), view.span().subspan(to.offset, to.bytes));
  }

  // The longest time, and all wrong elements.
  Measured of_all(const Measured& own) {
    Buffer time = device_.alloc(8, MemoryKind::kPinned), wrong = device_.alloc(8, MemoryKind::kPinned);
    *time.host_write<double>().begin() = own.us;
    *wrong.host_write<std::uint64_t>().begin() = own.wrong;
    comm_.all_reduce(time, time, DataType::kF64, ReduceOp::kMax, stream_);
    comm_.all_reduce(wrong, wrong, DataType::kU64, ReduceOp::kSum, stream_);
    stream_.sync();
    return {time.host_read<double>()[0], wrong.host_read<std::uint64_t>()[0]};
  }

  const Asked asked_;
  const Limits limits_;
  const Device device_ = Device::open("cpu");
  Communicator comm_;
  const Stream stream_;
};

// This program again, as a rank.
std::vector<std::string> command_of(const Asked& asked) {
  char path[4096] = {};
  if (::readlink("/proc/self/exe", path, sizeof(path) - 1) <= 0)
    throw Error(Code::kIo, "this program cannot find itself: /proc is not there");
  std::vector<std::string> words{path, "bench", collective_name(asked.kind)};
  const auto add = [&](const char* option, const std::string& value) { words.insert(words.end(), {option, value}); };
  add("-b", asked.begin);
  add("-e", asked.end);
  add("-f", fmt::format("{}", asked.factor));
  add("--iters", std::to_string(asked.iterations));
  add("-w", std::to_string(asked.warmup));
  add("-d", asked.type);
  if (reduces(asked.kind)) add("-o", asked.op);
  if (has_root(asked.kind)) add("-r", std::to_string(asked.root));
  if (asked.registered) words.emplace_back("--registered");
  if (asked.each) words.emplace_back("--each");
  if (asked.json) words.emplace_back("--json");
  return words;
}

// As a rank, if a launcher says so; else as the launcher of ranks.
int run_bench(const Asked& asked) {
  const Limits limits = limits_of(asked);
  if (launch_info()) return Bench(asked, limits).run();
  LocalJob job;
  job.nranks = asked.ranks;
  job.command = command_of(asked);
  return run_local_job(job);
}

}  // namespace

std::function<int()> add_collective_benches(CLI::App& bench) {
  auto asked = std::make_shared<Asked>();
  for (const Collective kind :
       {Collective::kAllReduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllGather,
        Collective::kReduceScatter, Collective::kAllToAll, Collective::kGather, Collective::kScatter}) {
    CLI::App* one = bench.add_subcommand(collective_name(kind), "Ranks of this host: time and bandwidth by size");
    one->footer(
        "\nColumns and bandwidths are those of nccl-tests: `size` is the larger of what a rank gives and gets, algbw "
        "is\n"
        "size / time, busbw what a link carries at least. Times are the slowest rank's; every result is checked.\n"
        "Ranks are started here, or by mpirun, srun and torchrun, which then say how many. Example:\n"
        "  slip bench all_reduce -n 4 -b 8 -e 256M -f 4");
    one->add_option("-n,--ranks", asked->ranks, "Processes to start")
        ->capture_default_str()
        ->check(CLI::Range(1, 1024));
    one->add_option("-b,--begin", asked->begin, "Smallest size")->capture_default_str();
    one->add_option("-e,--end", asked->end, "Largest size")->capture_default_str();
    one->add_option("-f,--factor", asked->factor, "From one size to the next")
        ->capture_default_str()
        ->check(CLI::Range(1.0001, 1e9));
    one->add_option("--iters", asked->iterations, "Calls that are timed")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 30));
    one->add_option("-w,--warmup", asked->warmup, "Calls before them")
        ->capture_default_str()
        ->check(CLI::Range(0, 1 << 30));
    one->add_option("-d,--datatype", asked->type, "I8 U8 I32 U32 I64 U64 F16 BF16 F32 F64 F8_E4M3 F8_E5M2")
        ->capture_default_str();
    if (reduces(kind)) one->add_option("-o,--op", asked->op, "sum prod min max avg")->capture_default_str();
    if (has_root(kind)) one->add_option("-r,--root", asked->root, "Its rank")->capture_default_str();
    one->add_flag("--registered", asked->registered, "Buffers that all ranks reach, from Communicator::allocate");
    one->add_flag("--each", asked->each, "Wait for each call, not once for all");
    one->add_flag("--json", asked->json, "Print the table as JSON");
    one->callback([asked, kind] { asked->kind = kind; });
  }
  return [asked] { return run_bench(*asked); };
}

}  // namespace slip::cli
