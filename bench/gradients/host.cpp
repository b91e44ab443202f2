// The host time and the allocations of Gradients itself: two ranks as threads, with the tensors of GPT-2 medium,
// reduced in size.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "models.hpp"
#include "slip/gradients.hpp"

namespace {

// Allocations of the threads that count. relaxed: the sum is read after the threads were joined.
thread_local bool counting = false;
std::atomic<std::uint64_t> allocations{0};

void* allocate(std::size_t bytes) {
  if (counting) allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* const made = std::malloc(bytes > 0 ? bytes : 1)) return made;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace slip::bench {
namespace {

constexpr std::uint64_t kSmaller = 1024;  // tensors are smaller by this factor, since transfers are not measured here

struct Seen {
  double ns = 0;  // in calls, of rank 0
  std::uint64_t calls = 0, allocations = 0, gradients = 0, buckets = 0, plans = 0;
};

// Both ranks run `steps` steps after the first two. The second of two runs counts: devices start threads when they
// first need them.
Seen run_steps(int steps, const GradientOptions& options) {
  const std::vector<Device> devices = {Device::open("cpu"), Device::open("cpu")};
  std::vector<Communicator> comms = Communicator::init_all(devices);
  Seen seen;
  const Model model = gpt2_medium();
  const auto train = [&](std::size_t rank) {
    Gradients gradients(comms[rank], devices[rank], options);
    const Stream compute = devices[rank].stream(StreamFlags::kNonBlocking);
    std::vector<ParameterId> parameters;
    for (const ModelLayer& layer : model.layers) {
      for (const std::uint64_t elements : layer.parameters)
        parameters.push_back(gradients.add(fmt::format("p{}", parameters.size()),
                                           std::max<std::uint64_t>(elements / kSmaller, 1) * 4, DataType::kF32));
    }
    gradients.seal();
    double ns = 0;
    for (int step = 0; step < steps + 2; ++step) {
      counting = step >= 2;
      const Timer timer;
      for (std::size_t i = parameters.size(); i-- > 0;) gradients.ready(parameters[i], compute);
      for (const ParameterId parameter : parameters) gradients.wait(parameter, compute);
      gradients.step_end();
      if (step >= 2) ns += timer.elapsed_ns();
      compute.sync();
    }
    counting = false;
    if (rank != 0) return;
    seen = {.ns = ns,
            .calls = 2 * parameters.size() * static_cast<std::uint64_t>(steps),
            .gradients = parameters.size() * static_cast<std::uint64_t>(steps),
            .buckets = gradients.plan().buckets.size()};
  };
  for (int turn = 0; turn < 2; ++turn) {
    allocations.store(0, std::memory_order_relaxed);
    std::thread other([&] { train(1); });
    train(0);
    other.join();
  }
  seen.allocations = allocations.load(std::memory_order_relaxed);
  return seen;
}

// A gradient that arrives after a sleep, which needs no core: arrival times stay the same on a busy machine.
const Kernel kPause{"pause", [](const Args&) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }};

// With a check of arrival times every few steps. If the machine stalls for long, a new plan is made, which allocates:
// the minimum of several runs counts.
Seen run_checked_steps(int steps) {
  const std::vector<Device> devices = {Device::open("cpu"), Device::open("cpu")};
  std::vector<Communicator> comms = Communicator::init_all(devices);
  Seen min;
  for (int turn = 0; turn < 6; ++turn) {  // the first one starts threads
    std::uint64_t plans = 0;
    const auto train = [&](std::size_t rank) {
      Gradients gradients(comms[rank], devices[rank], {.check_every = 4});
      const Stream compute = devices[rank].stream(StreamFlags::kNonBlocking);
      std::vector<ParameterId> parameters;
      for (int i = 0; i < 6; ++i) parameters.push_back(gradients.add(fmt::format("p{}", i), 4096, DataType::kF32));
      gradients.seal();
      std::uint64_t before = 0;
      for (int step = 0; step < steps + 2; ++step) {
        counting = step >= 2;
        if (step == 2) before = gradients.plans();
        for (std::size_t i = parameters.size(); i-- > 0;) {
          compute.launch(kPause, {.writes = {gradients.view(parameters[i])}});
          gradients.ready(parameters[i], compute);
        }
        for (const ParameterId parameter : parameters) {
          gradients.wait(parameter, compute);
          compute.launch(kPause, {.reads = {gradients.view(parameter)}});
        }
        gradients.step_end();
        compute.sync();
      }
      counting = false;
      if (rank == 0) plans = gradients.plans() - before;
    };
    allocations.store(0, std::memory_order_relaxed);
    std::thread other([&] { train(1); });
    train(0);
    other.join();
    const std::uint64_t count = allocations.load(std::memory_order_relaxed);
    if (turn == 1 || (turn > 1 && count < min.allocations)) min.allocations = count, min.plans = plans;
  }
  return min;
}

std::optional<double> host_cost(Context& context, const GradientOptions& options) {
  const Seen seen = run_steps(static_cast<int>(context.iterations(200)), options);
  context.note(fmt::format(
      "ready, wait and a share of step_end for each of 292 gradients in {} buckets, two ranks as threads; calls of "
      "the communicator are among it",
      seen.buckets));
  return seen.ns / static_cast<double>(seen.gradients);
}

Bar bar(std::string name, Unit unit, Measure measure, double limit) {
  return {.area = "gradients",
          .name = std::move(name),
          .unit = unit,
          .better = Better::kLower,
          .ours = std::move(measure),
          .limit = limit};
}

}  // namespace

void add_host_bars(Harness& harness) {
  harness.add(bar(
      "host_per_gradient", Unit::kNanoseconds, [](Context& context) { return host_cost(context, {.check_every = 0}); },
      1000));
  harness.add(bar(
      "host_per_gradient_ddp", Unit::kNanoseconds,
      [](Context& context) { return host_cost(context, {.buckets = BucketRule::kDdp}); }, 1000));
  harness.add(bar(
      "allocations_after_second_step", Unit::kCount,
      [](Context& context) -> std::optional<double> {
        context.note(
            "by both ranks' threads in 50 steps: in calls of gradients, of the communicator and in sync(); no new plan "
            "is made");
        return static_cast<double>(run_steps(50, {.check_every = 0}).allocations);
      },
      0));
  harness.add(bar(
      "allocations_with_checks", Unit::kCount,
      [](Context& context) -> std::optional<double> {
        const Seen seen = run_checked_steps(40);
        context.note(fmt::format(
            "the same in 40 steps with arrival times exchanged and looked at every 4 steps, 6 gradients 2 ms apart; "
            "the minimum of 5 runs, in which {} new plans were made",
            seen.plans));
        return static_cast<double>(seen.allocations);
      },
      0));
}

}  // namespace slip::bench
