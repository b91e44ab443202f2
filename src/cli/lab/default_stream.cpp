// Lab default-stream: kernel1 in one stream, kernel2 in the default stream, kernel3 in another; shows which of them
// wait.
#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

constexpr auto kBlocking = StreamFlags::kBlocking;

enum class Middle { kLegacy, kPerThread, kNothing, kRecord };

struct StreamCase {
  const char* name;
  StreamFlags first, third;
  Middle middle;
  const char* rule;
};

constexpr StreamCase kStreamCases[] = {
    {"blocking streams", kBlocking, kBlocking, Middle::kLegacy, "3, 4, 8"},
    {"non-blocking streams", kNonBlocking, kNonBlocking, Middle::kLegacy, "6, 7"},
    {"one blocking, one not", kBlocking, kNonBlocking, Middle::kLegacy, "3, 6"},
    {"per-thread default stream", kBlocking, kBlocking, Middle::kPerThread, "13"},
    {"blocking, without kernel2", kBlocking, kBlocking, Middle::kNothing, "2, 95"},
    {"blocking, only an event between", kBlocking, kBlocking, Middle::kRecord, "9"},
};

struct StreamOutcome {
  Run run;
  std::string order;
  int pairs = 0;  // of kernels that overlapped
};

StreamOutcome run_case(const Bench& bench, const StreamCase& wanted, const Work& work) {
  const Device device = bench.open({.compute_workers = 4});
  const Stream first = device.stream(wanted.first), third = device.stream(wanted.third);
  StreamOutcome outcome;
  outcome.run = bench.measure(device, {device.legacy_stream(), first, third}, [&] {
    busy(first, "k1", work);
    if (wanted.middle == Middle::kLegacy) busy(device.legacy_stream(), "k2", work);
    if (wanted.middle == Middle::kPerThread) busy(device.per_thread_stream(), "k2", work);
    if (wanted.middle == Middle::kRecord) static_cast<void>(device.legacy_stream().record());
    busy(third, "k3", work);
  });
  const std::vector<TraceSpan> kernels = outcome.run.kernels();
  outcome.order = order_of(kernels);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    for (std::size_t k = i + 1; k < kernels.size(); ++k) outcome.pairs += together(kernels[i], kernels[k]) ? 1 : 0;
  }
  return outcome;
}

}  // namespace

void lab_default_stream(const Bench& bench, Report& report) {
  const Picos kernel = bench.kernel_time();
  const Work work = bench.work(kernel, 0.25);  // a quarter of the device each, so that all three fit
  report.ask(fmt::format(
      "What does the default stream order? k1 goes into one stream, k2 into the default stream, k3 into another; each "
      "takes {} and a quarter of the device. Look at `seen`: -> means after, || means side by side.",
      base::format_time(kernel)));
  Table table("", {"case", "time=time_ps", "in kernels=kernels", "seen=order", "pairs ||=pairs", "rule"});
  std::vector<StreamOutcome> seen;
  for (const StreamCase& each : kStreamCases) {
    seen.push_back(run_case(bench, each, work));
    const StreamOutcome& outcome = seen.back();
    const Picos total = outcome.run.figures.total;
    table.row({word(each.name), time(total), times(ratio(total, kernel)), word(outcome.order), number(outcome.pairs),
               word(each.rule)});
  }
  report.show(table);
  const auto overlapped = [&](std::size_t i) { return seen[i].pairs > 0 ? "overlapped" : "ran one after the other"; };
  report.conclude(fmt::format(
      "With blocking streams the three kernels {}; with non-blocking streams they {}; with a per-thread default stream "
      "they {}; without kernel2 the other two {}; and an event recorded in the default stream was enough that they {}.",
      overlapped(0), overlapped(1), overlapped(3), overlapped(4), overlapped(5)));
}

}  // namespace slip::cli
