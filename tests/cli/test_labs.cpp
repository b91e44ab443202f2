// The labs in virtual time: their tables are exact, and derived here from the rates of the device's description.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "backend/sim/arithmetic.hpp"
#include "backend/sim/description.hpp"
#include "cli/program.hpp"
#include "support/share.hpp"

namespace slip::cli_test::test_labs {
namespace {

using nlohmann::json;

constexpr Picos kMilli = 1'000'000'000;
constexpr Picos kKernel = 10 * kMilli;  // of the labs in which only the order matters

// The arithmetic of one device, from its description.
class Model {
 public:
  explicit Model(const std::string& name) : device_(sim::load_description(name)) {}

  const sim::HostDescription& host() const { return device_.host; }
  Picos up(std::uint64_t bytes) const { return device_.copies.latency + sim::time_for(bytes, device_.copies.in); }
  Picos down(std::uint64_t bytes) const { return device_.copies.latency + sim::time_for(bytes, device_.copies.out); }
  Picos pageable(std::uint64_t bytes) const {
    return device_.copies.latency + sim::time_for(bytes, device_.copies.pageable);
  }
  // A kernel of this length when copies run beside it during the first `copying` of its time.
  Picos beside(Picos kernel, Picos copying) const {
    const auto full = static_cast<sim::U128>(sim::kPpm + device_.compute.copy_slowdown_ppm);
    const auto work = static_cast<sim::U128>(kernel) * full;
    const auto done = static_cast<sim::U128>(copying) * sim::kPpm;
    return work <= done ? sim::divide_up(work, sim::kPpm) : copying + sim::divide_up(work - done, full);
  }

 private:
  sim::Description device_;
};

class LabsOn : public testing::TestWithParam<const char*> {
 protected:
  std::string device() const { return std::string("sim:") + GetParam(); }
  Model model() const { return Model(GetParam()); }
};

constexpr std::int64_t kMiB = 1 << 20;

TEST_P(LabsOn, WeightsCountsMemoryAndTime) {
  const Model m = model();
  const json rows = lab_tables("weights", device()).at(0).at("rows");
  ASSERT_EQ(rows.size(), 6U);
  const Picos load = m.up(4 * kMiB);
  const Picos slow = 3 * load, fast = load / 4;
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("ok")) << row;
    const auto step = row.at("step_ps").get<double>();
    EXPECT_NEAR(row.at("predicted_ps").get<double>(), step, 0.06 * step) << row;
  }
  for (int i = 0; i < 2; ++i) {
    const Picos add = i == 0 ? slow : fast;
    const json& resident = rows.at(static_cast<std::size_t>(3 * i));
    EXPECT_EQ(resident.at("compute_ps"), 4 * add);
    EXPECT_EQ(resident.at("peak_bytes"), 24 * kMiB);  // input, four weights, output
    EXPECT_TRUE(resident.at("overlap_percent").is_null());
    const json& one = rows.at(static_cast<std::size_t>(3 * i + 1));
    EXPECT_EQ(one.at("compute_ps"), 4 * add + 3 * load);
    EXPECT_EQ(one.at("peak_bytes"), 12 * kMiB);
    EXPECT_EQ(one.at("overlap_percent"), 0.0);
    const json& two = rows.at(static_cast<std::size_t>(3 * i + 2));
    EXPECT_EQ(two.at("peak_bytes"), 16 * kMiB);
    EXPECT_LT(two.at("step_ps"), one.at("step_ps"));
  }
  // Slow kernels hide three loads, which slow them.
  EXPECT_EQ(rows.at(2).at("compute_ps"), 3 * m.beside(slow, load) + slow);
  // Fast kernels wait for each load: the link decides, with four weights and an input in each step. The input waits
  // until loads that come back to back have filled both slots (rule 50), so no load runs beside the first kernel.
  EXPECT_NEAR(rows.at(5).at("step_ps").get<double>(), static_cast<double>(5 * load + fast),
              0.2 * static_cast<double>(load));
}

TEST_P(LabsOn, EventsKeepFiveEdgesAndLoseOneOverlapWithTwo) {
  const Model m = model();
  const json tables = lab_tables("events", device(), "--quick");
  const json& rows = tables.at(0).at("rows");
  ASSERT_EQ(rows.size(), 4U);
  const Picos load = m.up(4 * kMiB), output = m.down(4 * kMiB), add = 2 * load;
  const Picos both = m.beside(add, load);  // a layer with a load all through its beginning, or its middle
  const int events[] = {3, 2, 2, 1};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(rows.at(i).at("events"), events[i]);
    EXPECT_EQ(rows.at(i).at("edges"), 5);
    EXPECT_TRUE(rows.at(i).at("ok"));
    EXPECT_EQ(rows.at(i).at("together"), i != 1) << "L1 beside A1, case " << i;
    const Picos kept = 3 * both + add + output;
    const Picos lost = both + add + load + both + add + output;  // A0 | A1 alone | L1 alone | A2 | A3
    EXPECT_EQ(rows.at(i).at("time_ps"), i == 1 ? lost : kept) << i;
    EXPECT_EQ(rows.at(i).at("exposed_ps"), i == 1 ? load + output : output) << i;
  }
  const json& edges = tables.at(1).at("rows");
  ASSERT_EQ(edges.size(), 6U);
  EXPECT_EQ(edges.at(0).at("wrong"), 0);
  for (std::size_t i = 1; i < 6; ++i) EXPECT_GT(edges.at(i).at("wrong"), 0) << edges.at(i);
}

TEST_P(LabsOn, HookBlocksInItsStreamAndWithOneQueue) {
  const json rows = lab_tables("hook", device()).at(0).at("rows");
  ASSERT_EQ(rows.size(), 3U);
  const Picos backward = kKernel, reduce = kKernel * 3 / 4, hook = kKernel / 8;
  EXPECT_EQ(rows.at(0).at("time_ps"), 4 * (backward + reduce + hook));
  EXPECT_EQ(rows.at(0).at("backward_ps"), 4 * backward + 3 * (reduce + hook));
  EXPECT_EQ(rows.at(0).at("exposed_ps"), 4 * reduce);
  EXPECT_EQ(rows.at(1).at("time_ps"), 4 * backward + reduce + hook);
  EXPECT_EQ(rows.at(1).at("backward_ps"), 4 * backward);
  EXPECT_EQ(rows.at(1).at("exposed_ps"), reduce);
  EXPECT_DOUBLE_EQ(rows.at(1).at("hidden_percent"), 75.0);
  // The hook's kernel leaves the queue when its reduction is done; backward is queued behind it.
  EXPECT_EQ(rows.at(2).at("time_ps"), 4 * (backward + reduce) + hook);
  EXPECT_EQ(rows.at(2).at("backward_ps"), 4 * backward + 3 * reduce);
  EXPECT_EQ(rows.at(2).at("exposed_ps"), 4 * reduce);
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("ok"));
    EXPECT_EQ(row.at("peak_bytes"), 4 * 64 << 10);
  }
}

// Exposed: every call; what is left at the end; more with one queue; and least with a plan.
TEST_P(LabsOn, GradientsExposeLeastWhenPlanned) {
  for (const char* more : {"", "--topology " SLIP_SOURCE_DIR "/tests/topo/data/nvswitch8.xml"}) {
    const json rows = lab_tables("gradients", device(), more).at(0).at("rows");
    ASSERT_EQ(rows.size(), 5U);
    const auto exposed = [&](std::size_t i) { return rows.at(i).at("exposed_ps").get<Picos>(); };
    EXPECT_GT(exposed(0), exposed(1));
    EXPECT_GE(exposed(2), exposed(1));
    EXPECT_LT(exposed(4), exposed(1));
    EXPECT_LT(exposed(4), exposed(3));
    for (const json& row : rows)
      EXPECT_EQ(row.at("time_ps").get<Picos>() - row.at("exposed_ps").get<Picos>(),
                rows.at(0).at("time_ps").get<Picos>() - exposed(0));
  }
}

TEST_P(LabsOn, DefaultStreamIsABarrierOfBlockingStreams) {
  const Model m = model();
  const json rows = lab_tables("default-stream", device()).at(0).at("rows");
  ASSERT_EQ(rows.size(), 6U);
  const Picos issue = m.host().launch;  // a kernel that waits for nothing starts when it is issued
  const Picos expected[] = {3 * kKernel,         kKernel + 2 * issue, 2 * kKernel,
                            kKernel + 2 * issue, kKernel + issue,     2 * kKernel};
  const char* order[] = {"k1 -> k2 -> k3", "k1 || k2 || k3", "k1 || k3 || k2, k1 -> k2",
                         "k1 || k2 || k3", "k1 || k3",       "k1 -> k3"};
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(rows.at(i).at("time_ps"), expected[i]) << rows.at(i);
    EXPECT_EQ(rows.at(i).at("order"), order[i]);
  }
}

TEST_P(LabsOn, HostIsHeldByWhatTheRulesSay) {
  const Model m = model();
  constexpr std::uint64_t kSize = 16 * kMiB;
  const json tables = lab_tables("host", device());
  const Picos launch = m.host().launch, copy = m.host().copy, sync = m.host().sync;
  const json& increment = tables.at(0).at("rows");
  EXPECT_EQ(increment.at(0).at("took_ps"), m.host().query + copy + m.pageable(kSize) + sync);  // finds the stream empty
  EXPECT_EQ(increment.at(1).at("took_ps"), launch);
  EXPECT_TRUE(increment.at(1).at("pending"));
  EXPECT_FALSE(increment.at(2).at("pending"));
  EXPECT_TRUE(increment.at(2).at("ok"));
  EXPECT_EQ(tables.at(1).at("rows").at(2).at("took_ps"), launch);
  EXPECT_TRUE(tables.at(1).at("rows").at(3).at("ok"));

  // Behind a kernel: the call begins when the kernel, and the event behind it, have been issued.
  const Picos left = kKernel - m.host().record;
  const std::pair<const char*, Picos> expected[] = {
      {"stream.launch(kernel)", launch},
      {"stream.copy, pinned, up", copy},
      {"stream.copy, pinned, down", copy},
      {"stream.copy, pageable 4 KiB, up", copy},
      {"stream.copy, pageable, up", left + m.pageable(kSize) + sync},
      {"stream.copy, pageable, down", left + m.pageable(kSize) + sync},
      {"device.copy, within the device", copy},
      {"device.copy, pinned, up", left + m.up(kSize) + sync},
      {"device.copy, pinned, down", left + m.down(kSize) + sync},
      {"stream.record(event)", m.host().record},
      {"wait(event) in another stream", m.host().wait},
      {"stream.query()", m.host().query},
      {"stream.sync()", left + sync},
  };
  const json& calls = tables.at(2).at("rows");
  ASSERT_EQ(calls.size(), std::size(expected));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls.at(i).at("call"), expected[i].first);
    EXPECT_EQ(calls.at(i).at("took_ps"), expected[i].second) << calls.at(i);
    EXPECT_EQ(calls.at(i).at("held"), expected[i].second > kKernel / 2) << calls.at(i);
  }
}

TEST_P(LabsOn, OverlapOfOneStreamIsNone) {
  const Model m = model();
  constexpr std::uint64_t kSize = 32 * kMiB;
  const json tables = lab_tables("overlap", device());
  const Picos up = m.up(kSize), down = m.down(kSize), kernel = up;
  const json& rows = tables.at(0).at("rows");
  EXPECT_EQ(rows.at(0).at("time_ps"), up + kernel + down);
  EXPECT_EQ(rows.at(1).at("time_ps"), 4 * (m.up(kSize / 4) + kernel / 4 + m.down(kSize / 4)));
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("ok"));
    EXPECT_EQ(row.at("peak_bytes"), kSize);
    EXPECT_LE(row.at("exposed_ps"), row.at("copy_ps"));
  }
  EXPECT_EQ(rows.at(0).at("exposed_ps"), up + down);
  EXPECT_EQ(rows.at(5).at("overlap_percent"), 0.0);  // pageable
  EXPECT_LT(rows.at(3).at("time_ps"), rows.at(2).at("time_ps"));
  const json& copies = tables.at(1).at("rows");
  EXPECT_EQ(copies.at(0).at("time_ps"), up);
  EXPECT_EQ(copies.at(1).at("time_ps"), down);
  EXPECT_EQ(copies.at(2).at("time_ps"), 2 * up);
  EXPECT_EQ(copies.at(2).at("together"), false);
}

TEST_P(LabsOn, QuestionsAreAllAnsweredByTheirExperiments) {
  const json rows = lab_tables("questions", device(), "--quick").at(0).at("rows");
  EXPECT_GE(rows.size(), 18U);
  for (const json& row : rows) {
    EXPECT_TRUE(row.at("shown")) << row;
    for (const char* key : {"question", "ran", "seen", "answer", "rules"})
      EXPECT_FALSE(row.at(key).get<std::string>().empty()) << row;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LabsOn, testing::Values("h200", "a100"), [](const auto& each) { return each.param; });

// A device whose figures make times easy: no latencies, no cost of calls, 1 GB/s each way.
std::string plain_device() {
  const std::string path = scratch("plain.json");
  std::ofstream(path) << R"({"name": "plain", "memory": "1 GB",
    "compute": {"flops": "1 TFLOP/s", "bandwidth": "100 GB/s"},
    "copies": {"engines": 2, "in": "1 GB/s", "out": "1 GB/s"}})";
  return path;
}

TEST(LabsOnAPath, OverlapIsAPipelineOfThreeStages) {
  const json rows = lab_tables("overlap", plain_device()).at(0).at("rows");
  const Picos step = 8 * kMiB * 1000;  // one of four chunks, a nanosecond a byte; kernels take as long
  const Picos expected[] = {12 * step, 12 * step, 7 * step, 6 * step, 6 * step};
  const Picos exposed[] = {8 * step, 8 * step, 3 * step, 2 * step, 2 * step};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    EXPECT_EQ(rows.at(i).at("time_ps"), expected[i]) << rows.at(i);
    EXPECT_EQ(rows.at(i).at("exposed_ps"), exposed[i]) << rows.at(i);
  }
}

TEST(LabsOnAPath, ChunksAndLayersAreTaken) {
  const json overlap = lab_tables("overlap", plain_device(), "--chunks 8 --size 16MiB").at(0).at("rows");
  const Picos step = 2 * kMiB * 1000;
  EXPECT_EQ(overlap.at(3).at("time_ps"), (8 + 2) * step);
  const json weights = lab_tables("weights", plain_device(), "--layers 10 --size 64KiB").at(0).at("rows");
  EXPECT_EQ(weights.at(0).at("peak_bytes"), 12 * (64 << 10));
  EXPECT_EQ(weights.at(2).at("peak_bytes"), 4 * (64 << 10));
  const Picos load = 64 * 1024 * 1000;
  EXPECT_EQ(weights.at(2).at("compute_ps"), 10 * 3 * load);
  EXPECT_EQ(weights.at(2).at("step_ps"), 10 * 3 * load + load);  // the output is taken before it is written again
  EXPECT_EQ(weights.at(2).at("predicted_ps"), weights.at(2).at("step_ps"));
  EXPECT_EQ(weights.at(2).at("overlap_percent"), 90.0);  // a load waits for the output, too
  // Ten weights and an input, which waits until loads back to back have filled both slots: no load runs beside the
  // first kernel, a quarter of a load.
  EXPECT_EQ(weights.at(5).at("step_ps"), 11 * load + load / 4);
}

TEST(LabsOnLaptop, OneCopyEngineServesBothDirections) {
  const json copies = lab_tables("overlap", "sim:laptop").at(1).at("rows");
  const Model m("laptop");
  EXPECT_EQ(copies.at(3).at("time_ps"), m.up(32 * kMiB) + m.down(32 * kMiB));
  EXPECT_EQ(copies.at(3).at("together"), false);
  const json tables = lab_tables("questions", "sim:laptop", "--quick");
  for (const json& row : tables.at(0).at("rows")) EXPECT_TRUE(row.at("shown")) << row;
}

// The deadline that ends a deadlock is of real time on every device, and communicators have names of their own.
std::string without_deadlock(const std::string& text) {
  const std::size_t begin = text.find("\ndeadlock\n="), end = text.find("\nquestions\n=");
  EXPECT_TRUE(begin < end && end != std::string::npos) << text;
  return text.substr(0, begin) + text.substr(end);
}

TEST(LabsOnSim, TwoRunsSayTheSameToTheLetter) {
  const Outcome first = run("lab --device sim:h200 --quick"), second = run("lab --device sim:h200 --quick");
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(without_deadlock(first.out), without_deadlock(second.out));
  EXPECT_LE(max_line(first.out), 100U);
}

TEST(LabsOnSim, TraceIsValidAndHasTheOps) {
  const std::string file = scratch("trace.json");
  ASSERT_EQ(run("lab weights --device sim:h200 --trace " + file).status, 0);
  const json trace = json::parse(read_file(file), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  const json& events = trace.is_array() ? trace : trace.at("traceEvents");
  std::size_t adds = 0;
  for (const json& event : events) {
    if (event.at("ph") == "X" && event.value("name", "").starts_with("add ")) ++adds;
  }
  EXPECT_EQ(adds,
            6U * (2 + 6) * 4U);  // six cases: two steps to warm, six measured; the predicted ones are no part of it
}

TEST(LabsOnSim, GradientsOfAHundredThousandDevices) {
  const std::string more = "--nodes 12500 --topology " SLIP_SOURCE_DIR "/tests/topo/data/nvswitch8.xml";
  const json rows = lab_tables("gradients", "sim:h200", more).at(0).at("rows");
  ASSERT_EQ(rows.size(), 5U);
  EXPECT_GT(rows.at(3).at("exposed_ps").get<Picos>(), 0);
  EXPECT_LT(rows.at(4).at("exposed_ps").get<Picos>(), rows.at(3).at("exposed_ps").get<Picos>());
  // The page is of the steps, not of what was simulated to know what calls cost.
  const std::string page = scratch("gradients.html");
  ASSERT_EQ(run("lab gradients --device sim:h200 --html " + page + " " + more).status, 0);
  EXPECT_NE(read_file(page).find("backward"), std::string::npos);
  EXPECT_LT(read_file(page).size(), std::size_t{4} << 20);
}

// On cpu times are what the machine gives; the results must be right and the memory counted.
TEST(LabsOnCpu, ResultsAreRight) {
  for (const char* name :
       {"overlap", "default-stream", "weights", "hook", "gradients", "events", "host", "questions"}) {
    for (const json& table : lab_tables(name, "cpu", "--quick")) {
      for (const json& row : table.at("rows")) {
        if (row.contains("ok") && !row.at("ok").is_null()) {
          EXPECT_TRUE(row.at("ok")) << name << row;
        }
      }
    }
  }
  const json weights = lab_tables("weights", "cpu", "--quick").at(0).at("rows");
  EXPECT_EQ(weights.at(0).at("peak_bytes"), 24 * kMiB);
  EXPECT_EQ(weights.at(2).at("peak_bytes"), 16 * kMiB);
}

// The planned step beside its prediction: a line for each call, and what is furthest off in words.
TEST(LabsOnCpu, GradientsOfSeveralRanksAreCompared) {
  for (const char* ranks : {"3", "4"}) {
    const std::string more = std::string("--quick --layers 5 --ranks ") + ranks;
    const json tables = lab_tables("gradients", "cpu", more);
    ASSERT_EQ(tables.size(), 2U);
    for (const json& row : tables.at(0).at("rows")) {
      EXPECT_TRUE(row.at("ok")) << row;
      EXPECT_EQ(row.at("proven"), "proven") << row;
      EXPECT_GT(row.at("communication_ps").get<Picos>(), 0) << row;
    }
    const json& buckets = tables.at(1).at("rows");
    EXPECT_EQ(buckets.size(), tables.at(0).at("rows").at(4).at("calls").get<std::size_t>());
    for (const json& row : buckets) {
      EXPECT_GT(row.at("predicted_call_ps").get<Picos>(), 0) << row;
      EXPECT_GT(row.at("measured_call_ps").get<Picos>(), 0) << row;
    }
  }
  const Outcome said = run("lab gradients --quick --layers 3 --ranks 3");
  EXPECT_NE(said.out.find("3 ranks"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("predicted and measured"), std::string::npos) << said.out;
  EXPECT_NE(said.out.find("% off"), std::string::npos) << said.out;
  EXPECT_LE(max_line(said.out), 100U) << said.out;
}

TEST(LabsOnCpu, OrderHoldsWhateverTheMachineDoes) {
  const json rows = lab_tables("default-stream", "cpu", "--quick").at(0).at("rows");
  EXPECT_EQ(rows.at(0).at("order"), "k1 -> k2 -> k3");
  EXPECT_EQ(rows.at(5).at("order"), "k1 -> k3");
  const json tables = lab_tables("events", "cpu", "--quick");
  for (const json& row : tables.at(0).at("rows")) EXPECT_EQ(row.at("edges"), 5);
}

// On a GPU the labs have the user's number of queues, except in the cases with one queue, which set it themselves.
TEST(LabsOnAGpu, HaveTheQueuesThatTheUserAsksFor) {
  if (::access("/dev/nvidiactl", F_OK) != 0) GTEST_SKIP() << "no GPU here";
  ::setenv("SLIP_MAX_CONNECTIONS", "8", 1);
  const Outcome outcome = run("lab hook --device cuda:0 --quick");
  ::unsetenv("SLIP_MAX_CONNECTIONS");
  if (outcome.err.find("built without CUDA") != std::string::npos) GTEST_SKIP() << outcome.err;
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

}  // namespace
}  // namespace slip::cli_test::test_labs
