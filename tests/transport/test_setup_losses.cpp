// Ranks that end or stop inside init, split and allocate, at each of their sends and connects in turn: the others name
// the right rank, long before the deadline.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdio>
#include <random>

#include "slip/communicator.hpp"
#include "support/processes.hpp"
#include "support/ranks.hpp"
#include "support/share.hpp"

namespace slip::test_setup_losses {
namespace {

// How many sends and connects this process still makes before it gets the signal. 0: no limit.
std::atomic<int> g_steps{0};
std::atomic<int> g_signal{SIGKILL};

// If several threads count down, only one reaches the end.
void step() {
  // relaxed: it only counts.
  if (g_steps.load(std::memory_order_relaxed) > 0 && g_steps.fetch_sub(1, std::memory_order_relaxed) == 1)
    ::kill(::getpid(), g_signal);
}

template <class Function>
Function* real(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace
}  // namespace slip::test_setup_losses

// Replace the C library's functions in this program.
extern "C" ssize_t send(int socket, const void* data, std::size_t bytes, int flags) {
  static auto* const function = slip::test_setup_losses::real<ssize_t(int, const void*, std::size_t, int)>("send");
  slip::test_setup_losses::step();
  return function(socket, data, bytes, flags);
}
extern "C" int connect(int socket, const sockaddr* address, socklen_t bytes) {
  static auto* const function = slip::test_setup_losses::real<int(int, const sockaddr*, socklen_t)>("connect");
  slip::test_setup_losses::step();
  return function(socket, address, bytes);
}

namespace slip::test_setup_losses {
namespace {

using std::chrono::seconds;
using test::RankProcess;

constexpr const char* kSteps = "SLIP_TEST_STEPS";  // of the rank that ends
constexpr const char* kCall = "SLIP_TEST_CALL";
constexpr const char* kStop = "SLIP_TEST_STOP";

int number_of(const char* variable) { return std::atoi(base::env_text(variable).c_str()); }

// Too long for a test: a rank that waits until then was not notified. Only if a rank ends before it reaches the root,
// the others cannot know.
CommunicatorOptions options(const std::string& call) {
  CommunicatorOptions result;
  result.init_timeout = seconds(call == "init" ? 10 : 600);
  return result;
}

// Tells the test that this rank is ready, and goes on when all are.
void meet_the_test() {
  char byte = 'x';
  static_cast<void>(!::write(test::kLine, &byte, 1));
  static_cast<void>(!::read(test::kLine, &byte, 1));
}

void arm() {
  if (number_of(kStop) != 0) g_signal = SIGSTOP;
  g_steps = number_of(kSteps);
}

SLIP_CHILD(SetupLosses, Rank) {
  test::play([](const transport::LaunchInfo& info) -> std::string {
    const std::string call = base::env_text(kCall);
    const Device device = Device::open("cpu", {.compute_workers = 2});
    if (call == "init") {
      meet_the_test();
      arm();
    }
    Communicator comm = Communicator::init(device, options(call));
    if (call != "init") {
      meet_the_test();
      arm();
    }
    const bool splits = call == "split" || (call == "mismatch" && info.rank == 1);
    std::optional<Communicator> part;
    SharedBuffer shared;
    if (splits) part = comm.split(0, info.nranks - info.rank);
    else if (call != "init") shared = comm.allocate(1 << 16);
    g_steps = 0;
    meet_the_test();  // no rank leaves before all have done it
    return "done";
  });
}

struct Trial {
  int nranks = 3;
  std::string call;
  std::string transport = "auto";
  int victim = 1;
  int steps = 1;
  bool stop = false;
  UniqueId id;
};

// Returns what the ranks report; the victim reports nothing if it ended.
std::vector<std::string> run(const Trial& trial) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < trial.nranks; ++rank) {
    std::map<std::string, std::string> variables{{kCall, trial.call}, {"SLIP_TRANSPORT", trial.transport}};
    if (rank == trial.victim) variables[kSteps] = std::to_string(trial.steps);
    if (trial.stop) variables[kStop] = "1";
    ranks.emplace_back("SetupLosses.Rank", trial.id, trial.nranks, rank, variables);
  }
  for (const RankProcess& rank : ranks) EXPECT_EQ(rank.hear(1), "x");
  for (const RankProcess& rank : ranks) rank.send('x');
  std::vector<std::string> reports(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const bool is_stopped = trial.stop && static_cast<int>(i) == trial.victim;  // its report does not count
    if (!is_stopped) reports[i] = ranks[i].hear(1);
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (reports[i] == "x") ranks[i].send('x');
    if (!reports[i].empty()) reports[i] += ranks[i].report();
  }
  return reports;
}

// True also for a rank that had done its part before the victim ended.
bool names(const std::string& report, int victim, int nranks) {
  if (report == "xdone") return true;
  const std::string rank = "rank " + std::to_string(victim), count = " of " + std::to_string(nranks);
  for (const std::string& words :
       {std::string(" is gone"), count + " is gone", std::string(" is not reached by"),
        std::string(" gives no sign of life"), count + " has not joined before", std::string(", which listens at")}) {
    if (report.find(rank + words) != std::string::npos) return true;
  }
  return false;
}

// Ends each rank in turn, at random steps, until it has no steps left.
void expect_loss_is_named(const std::string& call, const std::string& transport,
                          const std::function<UniqueId()>& make_id, int first = 1) {
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  const int nranks = 2 + static_cast<int>(random() % 3);
  std::printf("seed %u, %d ranks\n", seed, nranks);
  int lost = 0;
  for (int victim = 0; victim < nranks; ++victim) {
    int steps = first;
    for (bool ended = true; ended; steps += 1 + static_cast<int>(random() % (16 * test::kShare))) {
      const std::vector<std::string> reports = run({nranks, call, transport, victim, steps, false, make_id()});
      ended = reports[static_cast<std::size_t>(victim)].empty();
      for (int rank = 0; rank < nranks && ended; ++rank) {
        const std::string& report = reports[static_cast<std::size_t>(rank)];
        if (rank == victim) continue;
        EXPECT_TRUE(names(report, victim, nranks)) << "seed " << seed << ", " << call << ", rank " << victim
                                                   << " ended at step " << steps << ": rank " << rank << ": " << report;
      }
      lost += ended ? 1 : 0;
    }
  }
  std::printf("%d ranks were lost\n", lost);
  EXPECT_GT(lost, 0);
}

UniqueId made_id() { return test::local_id(); }

// Rank 0 also runs the root.
UniqueId id_by_hand() {
  static int number = 0;
  return UniqueId::parse("unix:slip-test-" + std::to_string(::getpid()) + "-" + std::to_string(++number));
}

TEST(SetupLosses, InsideAllocate) { expect_loss_is_named("allocate", "auto", made_id); }
TEST(SetupLosses, InsideSplit) { expect_loss_is_named("split", "auto", made_id); }
TEST(SetupLosses, InsideSplitOverTheNetwork) { expect_loss_is_named("split", "net", made_id); }

// The step with which a rank has said hello to the root: no rank knows of one that ends earlier.
constexpr int kHello = 5;
TEST(SetupLosses, InsideInit) { expect_loss_is_named("init", "auto", made_id, kHello); }
TEST(SetupLosses, InsideInitOverTheNetwork) { expect_loss_is_named("init", "net", made_id, kHello); }
TEST(SetupLosses, InsideInitWithTheRoot) { expect_loss_is_named("init", "auto", id_by_hand, 3 * kHello); }

// At these steps rank 0 ends before, between and behind the welcomes that its root sends. Ranks that have a welcome
// find ranks without one gone, and must name rank 0 all the same.
TEST(SetupLosses, AmongTheWelcomesOfTheRoot) {
  for (const int steps : {16, 18, 20}) {
    const std::vector<std::string> reports = run({4, "init", "auto", 0, steps, false, id_by_hand()});
    ASSERT_TRUE(reports[0].empty()) << reports[0];
    for (const std::size_t rank : {1U, 2U, 3U})
      EXPECT_TRUE(names(reports[rank], 0, 4)) << "step " << steps << ", rank " << rank << ": " << reports[rank];
  }
}

TEST(SetupLosses, AStoppedRankInAllocateAndSplit) {
  for (const char* call : {"allocate", "split"}) {
    const std::vector<std::string> reports = run({3, call, "auto", 1, 2, true, made_id()});
    for (const std::size_t rank : {0U, 2U}) EXPECT_TRUE(names(reports[rank], 1, 3)) << call << ": " << reports[rank];
  }
}

// Both calls begin with an exchange of equal size: they differ only in the signature.
TEST(SetupMismatches, AllocateAgainstSplitNamesBoth) {
  for (const char* transport : {"auto", "net"}) {
    for (const std::string& report : run({3, "mismatch", transport, -1, 0, false, made_id()})) {
      EXPECT_EQ(report.find("mismatch between ranks: "), 0U) << report;
      for (const char* words : {"called allocate", "called split", "rank 1"})
        EXPECT_NE(report.find(words), std::string::npos) << report;
    }
  }
}

}  // namespace
}  // namespace slip::test_setup_losses
