// The cost of the race checker while a program runs.
#include <chrono>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bars.hpp"
#include "program.hpp"
#include "slip/race.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kEmptyOps = 200'000;
constexpr std::size_t kKernels = 4'000;
constexpr std::chrono::microseconds kKernelTime{10};
constexpr std::size_t kFewOps = 10'000;
constexpr std::size_t kManyOps = 1'000'000;

const Kernel kSpin{"spin", [](const Args&) {
                     const auto end = std::chrono::steady_clock::now() + kKernelTime;
                     while (std::chrono::steady_clock::now() < end) {}
                   }};

const Device& device() {
  static const Device kDevice = Device::open("cpu");
  return kDevice;
}

enum class Checked { kNo, kYes };

void expect_clean(const RaceReport& report) {
  if (!report.races.empty() || report.ops == 0) throw std::runtime_error("the checker says: " + report.text());
}

// Nanoseconds per kernel with two ranges in one stream, from submission to the end of its run.
double kernels_ns(const Kernel& kernel, std::size_t count, Checked checked) {
  const Buffer from = device().alloc(1024), to = device().alloc(1024);
  const Range reads = from, writes = to;
  const Stream stream = device().stream(StreamFlags::kNonBlocking);
  std::optional<RaceChecker> checker;
  if (checked == Checked::kYes) checker.emplace();
  const Timer timer;
  for (std::size_t i = 0; i < count; ++i) stream.launch(kernel, {.reads = {reads}, .writes = {writes}});
  stream.sync();
  const double elapsed = timer.elapsed_ns();
  if (checker) expect_clean(checker->report());
  return elapsed / static_cast<double>(count);
}

// Runs the program from its start, with a checker.
double program_ns(std::size_t ops) {
  Program program(device());
  const RaceChecker checker;
  const Timer timer;
  program.run(ops);
  const double elapsed = timer.elapsed_ns();
  expect_clean(checker.report());
  return elapsed / static_cast<double>(ops);
}

// Samples both sides in alternating order, so that a drift of the machine hits both, and judges each pair. The first
// pair warms up and is not kept.
Recorded record_pairs(Context& context, const std::pair<std::string, std::function<double()>>& first,
                      const std::pair<std::string, std::function<double()>>& second,
                      double (*judged)(double first, double second)) {
  Series a{first.first, {}, {}}, b{second.first, {}, {}}, ours{"ours", {}, {}};
  for (int turn = 0; turn < context.repeat() + 1; ++turn) {
    double first_value = 0, second_value = 0;
    if (turn % 2 == 0) first_value = first.second(), second_value = second.second();
    else second_value = second.second(), first_value = first.second();
    if (turn == 0) continue;
    a.samples.push_back(first_value);
    b.samples.push_back(second_value);
    ours.samples.push_back(judged(first_value, second_value));
  }
  context.note(a.name + " " + format_ns(median(a.samples)) + " per op, " + b.name + " " + format_ns(median(b.samples)));
  return {std::move(ours), {}};
}

Recorded empty_ops(Context& context) {
  const std::size_t count = context.iterations(kEmptyOps);
  return record_pairs(context, {"checked", [=] { return kernels_ns(kNothing, count, Checked::kYes); }},
                      {"unchecked", [=] { return kernels_ns(kNothing, count, Checked::kNo); }},
                      [](double checked, double unchecked) { return checked - unchecked; });
}

double percent(double a, double b) { return 100 * a / b; }

Recorded long_kernels(Context& context) {
  const std::size_t count = context.iterations(kKernels);
  return record_pairs(context, {"checked", [=] { return kernels_ns(kSpin, count, Checked::kYes); }},
                      {"unchecked", [=] { return kernels_ns(kSpin, count, Checked::kNo); }}, percent);
}

Recorded growing_programs(Context& context) {
  const std::size_t many = context.iterations(kManyOps), few = context.iterations(kFewOps);
  const auto few_ns = [=] {
    constexpr int kTimes = 20;  // one run is too short to measure
    double sum = 0;
    for (int i = 0; i < kTimes; ++i) sum += program_ns(few);
    return sum / kTimes;
  };
  return record_pairs(context, {std::to_string(many) + " ops", [=] { return program_ns(many); }},
                      {std::to_string(few) + " ops", few_ns}, percent);
}

// Resident bytes per op, from the first tenth of the program to its end.
std::optional<double> memory_per_op(Context& context) {
  const std::size_t ops = context.iterations(kManyOps);
  Program program(device());
  const RaceChecker checker;
  program.run(ops / 10);
  const auto early = current_rss_bytes();
  program.run(ops - ops / 10);
  const auto late = current_rss_bytes();
  expect_clean(checker.report());
  if (!early || !late) return context.skip("no /proc here");
  context.note("resident after a tenth " + format_bytes(static_cast<double>(*early)) + ", at the end " +
               format_bytes(static_cast<double>(*late)));
  return (static_cast<double>(*late) - static_cast<double>(*early)) / static_cast<double>(ops - ops / 10);
}

}  // namespace

void add_checker_bars(Harness& harness) {
  harness.add({.area = "watch", .name = "checker_empty_op", .limit = 250, .record = empty_ops});
  harness.add(
      {.area = "watch", .name = "checker_10us_kernels", .unit = Unit::kPercent, .limit = 105, .record = long_kernels});
  harness.add({.area = "watch",
               .name = "checker_linear",
               .unit = Unit::kPercent,
               .limit = 120,
               .record = growing_programs,
               .max_repeat = 5});
  harness.add({.area = "watch",
               .name = "checker_memory_per_op",
               .unit = Unit::kBytes,
               .ours = memory_per_op,
               .limit = 1,
               .warmups = 0,
               .max_repeat = 3});
}

}  // namespace slip::bench
