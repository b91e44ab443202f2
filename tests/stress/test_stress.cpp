// Random programs on every device and policy, compared with the sequential reference. SLIP_STRESS_SEED sets the first
// seed, SLIP_STRESS_COUNT the number of programs; a failure prints both and the whole program.
#include <gtest/gtest.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "slip/race.hpp"
#include "stress/generator.hpp"
#include "stress/runner.hpp"
#include "support/devices.hpp"
#include "support/share.hpp"
#include "support/watchdog.hpp"

namespace slip::stress::test_stress {
namespace {

std::uint64_t setting(const char* variable, std::uint64_t otherwise) {
  const char* text = std::getenv(variable);
  if (!text) return otherwise;
  std::uint64_t value = 0;
  const std::string_view view(text);
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size())
    ADD_FAILURE() << variable << "=" << text << " is no number";
  return value;
}

using test::kShare;

struct Target {
  std::string label;
  const char* device;
  CpuPolicy policy = CpuPolicy::kConcurrent;
  std::uint64_t programs = 2000;
  Shape shape = {};
  bool host_queues = true;  // its queues and workers are ours to choose
};

void PrintTo(const Target& target, std::ostream* out) { *out << target.label; }

// Options that change nothing in the result: how copies of pageable memory are made, how many queues there are and how
// deep they are, how the pool reuses memory.
DeviceOptions options_for(const Target& target, std::uint64_t seed) {
  DeviceOptions options;
  if (target.host_queues) {
    options.policy = target.policy;
    options.seed = seed;
    options.compute_workers = 2;
    options.max_connections = seed % 5 == 0 ? 1 : seed % 5 == 1 ? 3 : 0;
    options.queue_depth = seed % 4 == 0 ? 16 : 0;
  }
  options.pageable = static_cast<PageableCopy>(seed % 3);
  options.pool.release_threshold = seed % 2 == 0 ? 0 : 1 << 20;
  options.pool.follow_event_dependencies = seed % 3 != 0;
  options.pool.opportunistic = seed % 7 != 0;
  options.pool.internal_dependencies = seed % 2 == 0;
  return options;
}

class Stress : public testing::TestWithParam<Target> {};

TEST_P(Stress, RandomProgramsMatchTheReference) {
  const std::uint64_t first = setting("SLIP_STRESS_SEED", 1),
                      count = setting("SLIP_STRESS_COUNT", GetParam().programs / kShare);
  test::Watchdog watchdog(std::chrono::seconds(300));
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    watchdog.note("seed " + std::to_string(seed));
    const Program program = generate(seed, GetParam().shape);
    const std::string wrong =
        difference(program, reference(program), run(program, GetParam().device, options_for(GetParam(), seed)));
    ASSERT_EQ(wrong, "") << "again with SLIP_STRESS_SEED=" << seed << " SLIP_STRESS_COUNT=1\n" << program.listing();
  }
}

std::vector<Target> targets() {
  std::vector<Target> all = {{"cpu_concurrent", "cpu", CpuPolicy::kConcurrent},
                             {"cpu_single", "cpu", CpuPolicy::kSingle},
                             {"cpu_random", "cpu", CpuPolicy::kRandom, 1000},
                             {"sim_h200", "sim:h200"}};
  // Opening a GPU and a launch on it take longer; and there may be one only.
  if (test::has_cuda()) {
    all.push_back(
        {.label = "cuda_0", .device = "cuda:0", .programs = 200, .shape = {.max_devices = 1}, .host_queues = false});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Devices, Stress, testing::ValuesIn(targets()),
                         [](const auto& param_info) { return param_info.param.label; });

TEST(StressGenerator, ProgramsAreFreeOfRaces) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Program program = generate(seed);
    const auto race = first_race(program);
    ASSERT_FALSE(race) << "step " << *race << "\n" << program.listing();
  }
}

TEST(StressGenerator, SameSeedSameProgram) {
  EXPECT_EQ(generate(42).listing(), generate(42).listing());
  EXPECT_NE(generate(42).listing(), generate(43).listing());
}

// Takes away one wait that the program needs; empty if it has none.
std::vector<Step> without_an_edge(const Program& program) {
  for (std::size_t i = program.steps.size(); i-- > 0;) {
    if (!program.steps[i].edge) continue;
    Program racy = program;
    racy.steps.erase(racy.steps.begin() + static_cast<std::ptrdiff_t>(i));
    if (first_race(racy)) return racy.steps;
  }
  return {};
}

// That the tests above can fail: with an edge missing, policy random gives a wrong result within a few seeds.
TEST(StressGenerator, AMissingEdgeIsFoundByPolicyRandom) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "these programs race on purpose";
#endif
  constexpr int kSample = 100, kSeeds = 40;
  const Shape shape{.max_devices = 1, .max_threads = 1, .steps = 40, .host_edges = false};
  test::Watchdog watchdog(std::chrono::seconds(300));
  int sample = 0, found = 0;
  for (std::uint64_t seed = 1; sample < kSample; ++seed) {
    Program program = generate(seed, shape);
    const Result expected = reference(program);
    program.steps = without_an_edge(program);
    if (program.steps.empty()) continue;
    ++sample;
    for (std::uint64_t policy_seed = 1; policy_seed <= kSeeds; ++policy_seed) {
      const Result actual = run(program, "cpu", {.policy = CpuPolicy::kRandom, .seed = policy_seed});
      if (difference(program, expected, actual).empty()) continue;
      ++found;
      break;
    }
  }
  RecordProperty("found", found);
  std::printf("%d of %d programs with a missing edge gave a wrong result\n", found, kSample);
  EXPECT_GE(found, kSample * 3 / 4) << "of " << kSample << " programs with a race";
}

// The race checker knows nothing of the generator's clocks; the two must agree. Several devices, threads, re-recorded
// events, the legacy stream, plans, stream-ordered memory, host accesses.
TEST(StressGenerator, TheRaceCheckerIsSilentOnCorrectPrograms) {
  test::Watchdog watchdog(std::chrono::seconds(300));
  std::uint64_t ops = 0;
  const std::uint64_t count = setting("SLIP_STRESS_COUNT", 1000 / kShare);
  for (std::uint64_t seed = 1; seed <= count; ++seed) {
    watchdog.note("seed " + std::to_string(seed));
    const Program program = generate(seed);
    RaceChecker checker;
    const bool simulated = seed % 4 == 0;
    run(program, simulated ? "sim:h200" : "cpu",
        simulated ? DeviceOptions() : DeviceOptions{.policy = CpuPolicy::kSingle});
    checker.stop();
    const RaceReport report = checker.report();
    ops += report.ops;
    ASSERT_TRUE(report.races.empty()) << "seed " << seed << "\n" << report.text() << program.listing();
  }
  EXPECT_GT(ops, 10 * count) << "it looked at nothing";
}

TEST(StressGenerator, TheRaceCheckerFindsEachMissingEdge) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "these programs race on purpose";
#endif
  const Shape shape{.max_devices = 1, .max_threads = 1, .steps = 40, .host_edges = false};
  test::Watchdog watchdog(std::chrono::seconds(300));
  std::uint64_t sample = 0;
  for (std::uint64_t seed = 1; sample < 300 / kShare; ++seed) {
    watchdog.note("seed " + std::to_string(seed));
    Program program = generate(seed, shape);
    // Host functions declare no ranges: of them nothing can be proven. Copies from host to host are made by the calling
    // thread and so are ordered, whatever the streams say. A query that says yes orders, too, and whether it does is
    // chance.
    const auto on_host = [&](const Span& span) {
      return program.buffers[static_cast<std::size_t>(span.buffer)].kind != MemoryKind::kDevice;
    };
    if (std::any_of(program.steps.begin(), program.steps.end(), [&](const Step& step) {
          return step.kind == Kind::kHostFunction || step.kind == Kind::kQuery || step.kind == Kind::kQueryEvent ||
                 (step.kind == Kind::kCopy && on_host(step.reads[0]) && on_host(step.writes[0]));
        }))
      continue;
    program.steps = without_an_edge(program);
    if (program.steps.empty()) continue;
    ++sample;
    RaceChecker checker;
    run(program, "sim:h200",
        {.run_functions = false});  // nothing is touched: a race that really happened could do harm
    checker.stop();
    ASSERT_FALSE(checker.report().races.empty()) << "seed " << seed << "\n" << program.listing();
  }
}

}  // namespace
}  // namespace slip::stress::test_stress
