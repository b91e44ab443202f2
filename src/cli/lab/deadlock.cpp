// Lab deadlock: ranks that wait for each other in a cycle, and a rank that waits outside of Slipstream.
//
// A collective waits in its stream until all ranks have joined. So two ranks that enqueue the calls of two
// communicators in different orders can deadlock. A rank that waits for another library can hang, too. The checker
// finds the cycle before the run, in a plan that models each call by flags. The ledger names it while the ranks hang.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/sync.hpp"
#include "base/thread.hpp"
#include "cli/lab/bench.hpp"
#include "comm/diagnose/stalls.hpp"
#include "slip/communicator.hpp"
#include "slip/verify.hpp"
#include "transport/ledger/ledger.hpp"

namespace slip::cli {
namespace {

constexpr std::size_t kRanks = 2, kBytes = 64;

struct DeadlockCase {
  const char* name;
  bool swapped;      // rank 1 makes its two calls in the other order
  bool own_streams;  // one stream per communicator
};

constexpr DeadlockCase kDeadlockCases[] = {
    {"the same order", false, false},
    {"another order on rank 1", true, false},
    {"another order, a stream for each", true, true},
};

// The communicator, 0 or 1, of a rank's call number `call`; and the stream that a rank uses for a communicator.
std::size_t communicator_of(const DeadlockCase& wanted, std::size_t rank, std::size_t call) {
  return wanted.swapped && rank == 1 ? 1 - call : call;
}
std::size_t stream_of(const DeadlockCase& wanted, std::size_t rank, std::size_t communicator) {
  return 2 * rank + (wanted.own_streams ? communicator : 0);
}

// Verifies a plan in which flags model the calls: for each call a rank sets its own flag and waits for the other
// rank's. `text` becomes the checker's report if it finds a deadlock.
Verification verify_calls(const Bench& bench, const DeadlockCase& wanted, std::string& text) {
  const Device device = bench.open();
  std::array<Stream, 2 * kRanks> streams{device.stream(kNonBlocking), device.stream(kNonBlocking),
                                         device.stream(kNonBlocking), device.stream(kNonBlocking)};
  std::vector<Buffer> flags;
  for (const char* name : {"rank 0 in X", "rank 1 in X", "rank 0 in Y", "rank 1 in Y"})
    flags.push_back(device.alloc(4, MemoryKind::kDevice, name));
  const Stream origin = device.stream(kNonBlocking);
  origin.begin_capture();
  const Event begun = origin.record();
  for (const Stream& stream : streams) stream.wait(begun);
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t call = 0; call < 2; ++call) {
      const std::size_t communicator = communicator_of(wanted, rank, call);
      const Stream& stream = streams[stream_of(wanted, rank, communicator)];
      stream.write_value(flags[2 * communicator + rank], 1);
      stream.wait_value(flags[2 * communicator + (1 - rank)], 1);
    }
  }
  for (const Stream& stream : streams) origin.wait(stream.record());
  const Plan plan = origin.end_capture();
  Verification proof = verify(plan);
  if (proof.verdict == Verdict::kDeadlock) text = proof.text(plan);
  return proof;
}

struct CaseResult {
  std::vector<comm::Stall> stalls;  // found while the ranks hung
  std::string error;                // at the deadline; empty: it completed
};

// The stalls that the ledger of this process shows now.
std::vector<comm::Stall> current_stalls() {
  std::vector<comm::RankState> ranks;
  if (const std::optional<transport::ProcessLedger> ledger = transport::read_ledger(::getpid())) {
    for (const transport::LedgerView& view : ledger->ranks) {
      if (view.life == transport::LedgerLife::kJoined) ranks.push_back({view, ledger->process.state});
    }
  }
  return comm::find_stalls(ranks);
}

std::string sync_error(const Stream& stream) {
  try {
    stream.sync();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

CommunicatorOptions deadline(const Bench& bench) {
  CommunicatorOptions options;
  options.timeout = std::chrono::milliseconds(bench.quick() ? 1500 : 3000);
  return options;
}

// After half of the deadline the ranks certainly hang.
CaseResult finish(const Bench& bench, const Stream& stream) {
  CaseResult result;
  if (!stream.sync_for(deadline(bench).timeout / 2)) result.stalls = current_stalls();
  result.error = sync_error(stream);
  return result;
}

std::vector<Device> devices_of_ranks(const Bench& bench) {
  if (bench.virtual_time()) return Device::open_all(bench.options().device, kRanks);
  return std::vector<Device>(kRanks, bench.open({.compute_workers = 2}));
}

CaseResult run_case(const Bench& bench, const DeadlockCase& wanted) {
  const std::vector<Device> devices = devices_of_ranks(bench);
  // Rank 0 has the shorter deadline: it gives up while the call that it waits for is still active and can be named.
  CommunicatorOptions later = deadline(bench);
  later.timeout *= 2;
  std::array<std::vector<Communicator>, 2> comms{Communicator::init_all(devices, deadline(bench)),
                                                 Communicator::init_all(devices, later)};
  std::vector<Stream> streams;
  std::vector<Buffer> data;
  for (std::size_t i = 0; i < 2 * kRanks; ++i) {
    streams.push_back(devices[0].stream(kNonBlocking));
    data.push_back(devices[0].alloc(kBytes, MemoryKind::kPinned));
  }
  for (std::size_t rank = 0; rank < kRanks; ++rank) {
    for (std::size_t call = 0; call < 2; ++call) {
      const std::size_t communicator = communicator_of(wanted, rank, call);
      const Buffer& range = data[2 * rank + communicator];
      comms[communicator][rank].all_reduce(range, range, DataType::kF32, ReduceOp::kSum,
                                           streams[stream_of(wanted, rank, communicator)]);
    }
  }
  CaseResult result = finish(bench, streams[0]);
  for (const Stream& stream : streams) static_cast<void>(sync_error(stream));
  return result;
}

class Pipe : base::NoCopy {
 public:
  Pipe() {
    if (::pipe(ends_) != 0) {
      const std::string why = std::strerror(errno);
      throw Error(ErrorCode::kIo, "cannot create a pipe: " + why, {});
    }
  }
  ~Pipe() {
    close_write_end();
    ::close(ends_[0]);
  }
  void wait_for_close() const {
    char byte = 0;
    static_cast<void>(!::read(ends_[0], &byte, 1));
  }
  void close_write_end() {
    if (ends_[1] >= 0) ::close(std::exchange(ends_[1], -1));
  }

 private:
  int ends_[2];
};

// Rank 1 reads from a pipe, like a wait in another library. Rank 0 closes the pipe only after its call is done.
CaseResult run_outside(const Bench& bench) {
  const std::vector<Device> devices = devices_of_ranks(bench);
  std::vector<Communicator> comms = Communicator::init_all(devices, deadline(bench));
  Pipe pipe;
  const Stream first = devices[0].stream(kNonBlocking), second = devices[1].stream(kNonBlocking);
  base::Thread other;
  other.start("slip lab", [&] {
    try {
      comms[1].barrier(second);
      static_cast<void>(sync_error(second));
      pipe.wait_for_close();
      comms[1].barrier(second);
      second.sync();
    } catch (const Error&) {  // rank 0 has given up before, with the reason
    }
  });
  struct Join {  // also after an error: the thread uses the variables above
    Pipe& pipe;
    base::Thread& thread;
    ~Join() {
      pipe.close_write_end();  // ends rank 1's wait
      thread.join();
    }
  } const at_end{pipe, other};
  comms[0].barrier(first);
  static_cast<void>(sync_error(first));
  comms[0].barrier(first);
  return finish(bench, first);
}

bool is_held_by(const CaseResult& result, std::initializer_list<comm::Stall::Kind> kinds) {
  return !result.stalls.empty() && std::ranges::find(kinds, result.stalls.front().kind) != kinds.end();
}

void add_row(Table& table, Report& report, const char* name, const Verification* proof, const CaseResult& result) {
  std::string kind = "went through", text;
  if (!result.stalls.empty()) {
    kind = comm::stall_name(result.stalls.front().kind);
    text = result.stalls.front().text;
    report.print(paragraph(fmt::format("{}: {}: {}", name, kind, text), 4) + "\n");
  }
  if (!result.error.empty())
    report.print(paragraph(fmt::format("{}: at the deadline: {}", name, result.error), 4) + "\n");
  table.row({word(name), proof ? word(verdict_name(proof->verdict)) : none(), word(kind),
             word(result.error.empty() ? "done" : "error at the deadline"), word(text), word(result.error)});
}

}  // namespace

void lab_deadlock(const Bench& bench, Report& report) {
  report.ask(
      "Two ranks make one call each in two communicators, X and Y. A call waits in its stream until the other rank has "
      "joined it, too. Which orders of the calls deadlock? And what does the ledger show if a rank waits outside of "
      "Slipstream?");
  report.print("\n");
  Table table("", {"case", "before the run=verdict", "in the run=seen", "end", "=text", "=error"});
  bool as_expected = true;  // true: only the swapped order in one stream hung
  bool predicted = true;    // true: the checker predicted it
  bool named = true;        // true: the ledger named it while the ranks hung
  for (const DeadlockCase& each : kDeadlockCases) {
    std::string cycle;
    const Verification proof = verify_calls(bench, each, cycle);
    if (!cycle.empty()) report.print(fmt::format("{}, before it runs:\n{}\n", each.name, cycle));
    const CaseResult result = run_case(bench, each);
    predicted = predicted && (proof.verdict == Verdict::kDeadlock) == !result.error.empty();
    as_expected = as_expected && (each.swapped && !each.own_streams) == !result.error.empty();
    if (!result.error.empty())
      named = named && is_held_by(result, {comm::Stall::Kind::kDeadlock, comm::Stall::Kind::kPossibleDeadlock});
    add_row(table, report, each.name, &proof, result);
  }
  const CaseResult outside = run_outside(bench);
  named = named && is_held_by(outside, {comm::Stall::Kind::kMissingRank});
  add_row(table, report, "rank 1 waits outside", nullptr, outside);
  report.show(table);
  report.conclude(fmt::format(
      "{}. {}",
      borne_out("Calls of two communicators must have the same order in every rank's stream, or streams of their own",
                as_expected),
      fmt::format("{}; {}.", predicted ? "The run agreed with the checker" : "The checker and the run did not agree",
                  named ? "the ledger named the cycle and the rank that was outside"
                        : "the ledger did NOT name each cycle and the rank that was outside")));
}

}  // namespace slip::cli
