// Lab hook: a backward pass whose gradients are reduced over the network, and a hook that works on each reduced
// gradient.
//
// The hook's kernel waits for the communication. In the compute stream all later kernels wait, too. On a separate
// stream they do not, unless both streams share one hardware queue and the waiting kernel is at its head.
#include <algorithm>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

struct HookCase {
  const char* name;
  bool own_stream;
  int queues;  // hardware queues; 0: the device's own number
};

constexpr HookCase kHookCases[] = {
    {"hook in the compute stream", false, 0},
    {"hook in a stream of its own", true, 0},
    {"own stream, one hardware queue", true, 1},
};

struct Times {
  Picos backward, reduce, hook;
};

struct HookOutcome {
  Picos time = 0;
  Picos backward = 0;  // from the start of the first layer to the end of the last
  Cover communication;
  std::size_t peak_bytes = 0;
  bool ok = false;
};

Times times_of(const Bench& bench) {
  const Picos unit = bench.kernel_time();
  return {unit, unit * 3 / 4, unit / 8};
}
std::size_t hook_layers(const Bench& bench) { return static_cast<std::size_t>(bench.options().layers.value_or(4)); }

// Gradients start as 1; backward adds 1, the reduction doubles (the sum over two equal ranks), the hook halves and
// adds 1.
constexpr float kExpected = (1.0F + 1.0F) * 2.0F / 2.0F + 1.0F;
constexpr std::size_t kGradientBytes = 64 << 10;

HookOutcome run_case(const Bench& bench, const HookCase& wanted, std::size_t layers, const Times& times) {
  const Device device = bench.open({.compute_workers = 4, .max_connections = wanted.queues});
  const Stream compute = device.stream(kNonBlocking);
  const Stream network = device.stream(kNonBlocking);
  const Stream side = device.stream(kNonBlocking);
  const StreamRef hook = wanted.own_stream ? StreamRef(side) : StreamRef(compute);
  // The widths let all three run concurrently: a reduction is a small kernel that mostly waits for the network.
  const Work backward = bench.work(times.backward, 0.5), reduce = bench.work(times.reduce, 0.25),
             work = bench.work(times.hook, 0.25);
  Buffer host = device.alloc(kGradientBytes, MemoryKind::kPinned, "host");
  std::vector<Buffer> gradients;
  for (std::size_t k = 0; k < layers; ++k)
    gradients.push_back(device.alloc(kGradientBytes, MemoryKind::kDevice, fmt::format("gradient {}", k)));
  const auto launch = [](StreamRef stream, const Buffer& data, const Work& of, float factor, float more,
                         const std::string& name) {
    stream.launch(kScale, {{data}, {data}, {of.pace, factor, more}, name}, of.cost);
  };
  const auto reset = [&] {
    std::ranges::fill(host.host_write<float>(), 1.0F);
    for (const Buffer& gradient : gradients) device.copy(gradient, host);
    device.sync();
  };
  HookOutcome outcome;
  const auto step = [&] {
    for (std::size_t k = 0; k < layers; ++k) {
      launch(compute, gradients[k], backward, 1.0F, 1.0F, fmt::format("backward {}", k));
      network.wait(compute.record());
      launch(network, gradients[k], reduce, 2.0F, 0.0F, fmt::format("reduce {}", k));
      hook.wait(network.record());
      launch(hook, gradients[k], work, 0.5F, 1.0F, fmt::format("hook {}", k));
    }
  };
  const Run run = bench.measure(device, {compute, network, side}, step, reset);
  outcome.time = run.figures.total;
  outcome.backward = run.span(fmt::format("backward {}", layers - 1)).ended - run.span("backward 0").started;
  outcome.communication = cover(run.spans, named("reduce"), named("backward"));
  outcome.peak_bytes = run.peak_bytes;
  outcome.ok = true;
  for (const Buffer& gradient : gradients) {
    device.copy(host, gradient);
    outcome.ok &= std::ranges::all_of(host.host_read<float>(), [](float value) { return value == kExpected; });
  }
  return outcome;
}

// On a GPU the case with one hardware queue runs in another process, because the driver reads the number of queues only
// once in each process.
HookOutcome run_anywhere(const Bench& bench, const HookCase& wanted, std::size_t layers, const Times& times) {
  if (wanted.queues == 0 || !bench.on_gpu()) return run_case(bench, wanted, layers, times);
  const base::Json json = run_with_one_queue(bench, "hook", 1);
  base::JsonFields seen(json, kResultOfCase);
  HookOutcome outcome;
  outcome.time = seen.integer("time", 0, kMaxCaseTime);
  outcome.backward = seen.integer("backward", 0, kMaxCaseTime);
  outcome.communication = {seen.integer("communication", 0, kMaxCaseTime), seen.integer("hidden", 0, kMaxCaseTime)};
  outcome.peak_bytes = seen.number("peak_bytes");
  outcome.ok = seen.boolean("ok");
  seen.finish();
  return outcome;
}

}  // namespace

base::Json hook_with_one_queue(const Bench& bench) {
  const HookOutcome seen = run_case(bench, kHookCases[2], hook_layers(bench), times_of(bench));
  return {{"time", seen.time},
          {"backward", seen.backward},
          {"communication", seen.communication.busy},
          {"hidden", seen.communication.covered},
          {"peak_bytes", seen.peak_bytes},
          {"ok", seen.ok}};
}

void lab_hook(const Bench& bench, Report& report) {
  const std::size_t layers = hook_layers(bench);
  const Times times = times_of(bench);
  report.ask(fmt::format(
      "Does a gradient hook hold up the backward pass? {} layers of {}; after each one its gradient is reduced over "
      "the network ({}) and a hook's kernel ({}) waits for that. Look at `backward`: undisturbed it takes {}.",
      layers, base::format_time(times.backward), base::format_time(times.reduce), base::format_time(times.hook),
      base::format_time(times.backward * static_cast<Picos>(layers))));
  Table table("", {"case", "time=time_ps", "backward=backward_ps", "reduce hidden=hidden_percent", "exposed=exposed_ps",
                   "memory=peak_bytes", "result=ok"});
  std::vector<HookOutcome> seen;
  for (const HookCase& each : kHookCases) {
    seen.push_back(run_anywhere(bench, each, layers, times));
    const HookOutcome& outcome = seen.back();
    const Cover& cover = outcome.communication;
    table.row({word(each.name), time(outcome.time), time(outcome.backward),
               percent(100.0 * ratio(cover.covered, cover.busy)), time(cover.busy - cover.covered),
               bytes(outcome.peak_bytes), result(outcome.ok)});
  }
  report.show(table);
  const Picos alone = times.backward * static_cast<Picos>(layers);
  const bool blocked = seen[2].backward > seen[1].backward + times.reduce;
  const double held = ratio(seen[0].backward, alone), own = ratio(seen[1].backward, alone);
  report.conclude(fmt::format(
      "{}. Relative to its time alone, the backward pass took {} with the hook in its stream, {} with the hook in a "
      "stream of its own, and {} with one hardware queue, where the waiting hook {} (rules 93, 94).",
      borne_out("A hook in the compute stream holds up the backward pass, one in a stream of its own does not",
                held > 1.25 && own < 1.25),
      base::format_times(held), base::format_times(own), base::format_times(ratio(seen[2].backward, alone)),
      blocked ? "holds back the kernels queued behind it" : "did not hold back the others"));
}

}  // namespace slip::cli
