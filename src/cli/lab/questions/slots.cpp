// Questions about weights that are loaded into few slots.
#include <algorithm>

#include "cli/lab/bench.hpp"
#include "cli/lab/cuda_kernels.hpp"

namespace slip::cli {
namespace {

// Size of a weight in experiments that measure time.
std::size_t weight_bytes(const Bench& bench) { return bench.copy_bytes() / 8; }

// A program of layers. Each reads its weight from one of `slots` slots and adds up the weight's first number. The
// result is right if every layer saw its own weight.
struct Stack {
  std::size_t layers, slots, bytes;
  bool guard;  // a load waits for the layer that used its slot
  Work layer;
};

void add_first(const Args& args) {
  const Pace pace(args);
  args.out<float>(0)[0] += args.in<float>(0)[0];
}
const Kernel kAddFirst{"layer", add_first, cuda::add_first};

class StackRun {
 public:
  StackRun(const Device& device, const Stack& stack)
      : stack_(stack),
        compute_(device.stream(kNonBlocking)),
        load_(device.stream(kNonBlocking)),
        sum_(device.alloc(sizeof(float), MemoryKind::kDevice, "sum")),
        total_(device.alloc(sizeof(float), MemoryKind::kPinned, "total")),
        weights_(device.alloc(stack.bytes * stack.layers, MemoryKind::kPinned, "weights")) {
    const auto view = weights_.host_write<float>();
    for (std::size_t k = 0; k < stack.layers; ++k)
      std::fill_n(view.begin() + k * stack.bytes / sizeof(float), stack.bytes / sizeof(float),
                  static_cast<float>(k + 1));
    for (std::size_t i = 0; i < stack.slots; ++i)
      slots_.push_back(device.alloc(stack.bytes, MemoryKind::kDevice, "slot"));
  }

  std::vector<StreamRef> streams() const { return {compute_, load_}; }
  void prepare(const Device& device) const {
    device.fill(sum_, 0);
    device.sync();
  }
  void issue() const {
    std::vector<Event> used(stack_.slots);
    for (std::size_t k = 0; k < stack_.layers; ++k) {
      const std::size_t slot = k % stack_.slots;
      if (stack_.guard) load_.wait(used[slot]);
      load_.copy(slots_[slot], weights_.slice(k * stack_.bytes, stack_.bytes), "load");
      compute_.wait(load_.record());
      compute_.launch(kAddFirst, {{slots_[slot]}, {sum_}, {stack_.layer.pace}}, stack_.layer.cost);
      compute_.record(used[slot]);
    }
  }
  bool ok(const Device& device) const {
    device.copy(total_, sum_);
    const auto layers = static_cast<float>(stack_.layers);
    return total_.host_read<float>()[0] == layers * (layers + 1) / 2;
  }

 private:
  Stack stack_;
  Stream compute_, load_;
  Buffer sum_, total_, weights_;
  std::vector<Buffer> slots_;
};

Picos stack_time(const Bench& bench, const Stack& stack) {
  const Device device = bench.open({.compute_workers = 1});
  const StackRun run(device, stack);
  return bench
      .measure(
          device, run.streams(), [&] { run.issue(); }, [&] { run.prepare(device); })
      .figures.total;
}

int wrong_stacks(int seeds, const Stack& stack) {
  return wrong_in_random_orders(seeds, [&](const Device& device) {
    const StackRun run(device, stack);
    run.prepare(device);
    run.issue();
    device.sync();
    return run.ok(device);
  });
}

Finding why_not_the_same_slot(const Bench& bench) {
  const int seeds = bench.quick() ? 30 : 60;
  const Picos load = bench.upload_time(weight_bytes(bench));
  const Work layer = bench.work(load);
  const int careless = wrong_stacks(seeds, {4, 1, 4096, false, {}}),
            guarded = wrong_stacks(seeds, {4, 1, 4096, true, {}});
  const Picos one = stack_time(bench, {8, 1, weight_bytes(bench), true, layer}),
              two = stack_time(bench, {8, 2, weight_bytes(bench), true, layer});
  return {fmt::format("one slot, loads that do not wait for the layer, then loads that do ({} random orders on cpu); "
                      "then the time of 8 layers in one slot and in two",
                      seeds),
          fmt::format("wrong results: {} without waiting, {} with; time {} in one slot, {} in two", careless, guarded,
                      base::format_time(one), base::format_time(two)),
          "The layer still reads it: a load would overwrite what is in use. If the load waits, the result is right, "
          "but nothing overlaps. With a second slot the result is right and loads overlap layers.",
          careless > 0 && guarded == 0 && two < one};
}

Finding three_events(const Bench& bench) {
  const Work add = bench.work(2 * bench.upload_time(weight_bytes(bench)));
  Picos total[4] = {};
  bool ok = true;
  for (const EventScheme use :
       {EventScheme::kThree, EventScheme::kTwo, EventScheme::kTwoWaitAtOnce, EventScheme::kOneWaitAtOnce}) {
    const CheckedRun seen = run_two_slots(bench, use, weight_bytes(bench), add);
    total[static_cast<int>(use)] = seen.run.figures.total;
    ok &= seen.ok;
  }
  const auto about = [&](int i) { return static_cast<double>(total[i]) < 1.05 * static_cast<double>(total[0]); };
  return {
      "four layers in two slots, with three events or two, and with two or one whose waits come right after their "
      "records",
      fmt::format("three {}, two {}; waits right after records: two {}, one {}; results {}",
                  base::format_time(total[0]), base::format_time(total[1]), base::format_time(total[2]),
                  base::format_time(total[3]), ok ? "right" : "WRONG"),
      "No. Five edges are needed, not three events. A wait refers to the last record issued before it, so one event "
      "is enough if each wait comes right after its record. If layers share an event and the waits come later, the "
      "result is still right, but less overlaps.",
      ok && !about(1) && about(2) && about(3)};
}

Finding sure_of_the_order(const Bench& bench) {
  const int seeds = bench.quick() ? 30 : 60;
  int wrong[kEdges + 1];
  for (int edge = 0; edge <= kEdges; ++edge) wrong[edge] = wrong_without_edge(seeds, edge);
  const bool each_needed = std::all_of(wrong + 1, wrong + 1 + kEdges, [](int count) { return count > 0; });
  return {
      fmt::format("the two slots in {} random orders (on cpu), with all five edges and with each left out in turn",
                  seeds),
      fmt::format("wrong results: {} with all; {}, {}, {}, {}, {} without the first to the fifth", wrong[0], wrong[1],
                  wrong[2], wrong[3], wrong[4], wrong[5]),
      "Write down every pair that touches the same bytes, also the loads that overwrite what a layer read, and check "
      "that an edge orders each. A random order that goes wrong shows a missing one; a proof needs the race check.",
      wrong[0] == 0 && each_needed};
}

Finding more_slots(const Bench& bench) {
  constexpr std::size_t kLayers = 8;
  const Picos load = bench.upload_time(weight_bytes(bench));
  const Work layer = bench.work(load / 4);
  Picos total[5] = {};
  for (const std::size_t slots : {std::size_t{1}, std::size_t{2}, std::size_t{4}})
    total[slots] = stack_time(bench, {kLayers, slots, weight_bytes(bench), true, layer});
  const Picos loads = load * static_cast<Picos>(kLayers);
  return {
      fmt::format("{} layers with kernels of a quarter of a load ({}) in 1, 2 and 4 slots", kLayers,
                  base::format_time(load)),
      fmt::format("1 slot {}, 2 slots {}, 4 slots {}; the loads alone {}", base::format_time(total[1]),
                  base::format_time(total[2]), base::format_time(total[4]), base::format_time(loads)),
      "Then the link decides: the time is that of the loads, and more slots do not help (they smooth uneven layers). "
      "Bigger batches make the kernels longer and hide the loads.",
      total[2] < total[1] && ratio(total[4], total[2]) > 0.9 && ratio(total[2], loads) > 0.9};
}

constexpr Question kQuestions[] = {
    {"Why is the next weight not loaded into the slot that is in use?", "39, 57", why_not_the_same_slot},
    {"Are three events needed for two slots?", "54, 56", three_events},
    {"How can one be sure that the order is the intended one?", "1, 57, 59", sure_of_the_order},
    {"What if the kernels are shorter than the loads: do more slots help?", "46", more_slots},
};

}  // namespace

std::span<const Question> slot_questions() { return kQuestions; }

}  // namespace slip::cli
