// Lab events: how many events the two weight slots need, and that each of the five edges is needed.
//
// The program is a model of four layers in two weight slots. A0..A3 are the layers (adds), L0..L2 the loads of weights
// 1..3. Layer 0's weight is in slot 0 before the run. Between the streams five edges are needed:
//   1..3  A1, A2, A3 after L0, L1, L2: a layer reads the loaded weight
//   4, 5  L1, L2 after A0, A1: a load overwrites the weight that the layer has read
#include <algorithm>
#include <array>

#include "cli/lab/bench.hpp"

namespace slip::cli {
namespace {

constexpr std::size_t kLayers = 4;

class TwoSlots {
 public:
  TwoSlots(const Device& device, std::size_t bytes, const Work& add)
      : device_(device), add_(add), compute_(device.legacy_stream()), load_(device.stream(kNonBlocking)) {
    for (std::size_t k = 0; k < kLayers; ++k) {
      host_.push_back(device.alloc(bytes, MemoryKind::kPinned, fmt::format("weight {}", k)));
      std::ranges::fill(host_.back().host_write<float>(), static_cast<float>(1U << k));
    }
    for (Buffer& slot : slots_) slot = device.alloc(bytes, MemoryKind::kDevice, "slot");
    for (Buffer& data : data_) data = device.alloc(bytes, MemoryKind::kDevice, "data");
    input_ = device.alloc(bytes, MemoryKind::kPinned, "input");
    output_ = device.alloc(bytes, MemoryKind::kPinned, "output");
    std::ranges::fill(input_.host_write<float>(), 100.0F);
  }

  // Resets the data and waits for the device.
  void prepare() {
    std::ranges::fill(output_.host_write<float>(), 0.0F);
    device_.copy(data_[0], input_);
    device_.copy(slots_[0], host_[0]);
    device_.fill(slots_[1], 0);
    device_.sync();
  }
  // Issues the run. `without`: the edge to omit, 1 to 5; 0: none.
  void issue(EventScheme use, int without = 0) const {
    if (use == EventScheme::kThree || use == EventScheme::kTwo) issue_three(use == EventScheme::kTwo, without);
    else issue_at_once(use == EventScheme::kOneWaitAtOnce);
  }
  std::vector<StreamRef> streams() const { return {compute_, load_}; }
  // REQUIRES: the device is synchronised.
  bool ok() const {
    return std::ranges::all_of(output_.host_read<float>(), [](float value) { return value == 115.0F; });
  }

 private:
  // Each wait is directly before the op that needs it. If the layers share one event, the wait before L1 sees the
  // record after A1 instead of the one after A0: correct, but later than needed (rule 54).
  void issue_three(bool shared, int without) const {
    Event before, after, loaded;
    Event* const computed[] = {shared ? &after : &before, &after};  // by layer; the last two need no event
    const auto wait = [&](StreamRef stream, const Event& event, std::size_t edge) {
      if (edge != static_cast<std::size_t>(without)) stream.wait(event);
    };
    for (std::size_t k = 0; k + 1 < kLayers; ++k) {
      add(k);
      if (k + 2 < kLayers) compute_.record(*computed[k]);
      if (k > 0) wait(load_, *computed[k - 1], 3 + k);
      load(k);
      load_.record(loaded);
      wait(compute_, loaded, 1 + k);
    }
    add(kLayers - 1);
    compute_.copy(output_, data_[0], "output");
  }

  // Each wait directly follows its record, so the next record may reuse the event: the wait holds the earlier record.
  void issue_at_once(bool shared) const {
    Event one, two;
    Event& computed = one;
    Event& loaded = shared ? one : two;
    for (std::size_t k = 0; k + 1 < kLayers; ++k) {
      add(k);
      load(k);
      if (k + 2 < kLayers) {
        compute_.record(computed);
        load_.wait(computed);
      }
      load_.record(loaded);
      compute_.wait(loaded);
    }
    add(kLayers - 1);
    compute_.copy(output_, data_[0], "output");
  }

  void add(std::size_t layer) const {
    static const std::array<Name, kLayers> kNames = {"A0", "A1", "A2", "A3"};
    compute_.launch(kVectorAdd,
                    {{data_[layer % 2], slots_[layer % 2]}, {data_[(layer + 1) % 2]}, {add_.pace}, kNames[layer]},
                    add_.cost);
  }

  // L(k) loads weight k+1.
  void load(std::size_t k) const {
    static const std::array<Name, kLayers - 1> kNames = {"L0", "L1", "L2"};
    load_.copy(slots_[(k + 1) % 2], host_[k + 1], kNames[k]);
  }

  Device device_;
  Work add_;
  StreamRef compute_;
  Stream load_;
  std::vector<Buffer> host_;  // weights
  std::array<Buffer, 2> slots_, data_;
  Buffer input_, output_;
};

struct EventCase {
  const char* name;
  EventScheme use;
  int events;
};

constexpr EventCase kEventCases[] = {
    {"wait just before its op", EventScheme::kThree, 3},
    {"same, layers share an event", EventScheme::kTwo, 2},
    {"wait just after its record", EventScheme::kTwoWaitAtOnce, 2},
    {"wait just after its record", EventScheme::kOneWaitAtOnce, 1},
};

constexpr const char* kEdgeNames[kEdges] = {"A1 after L0", "A2 after L1", "A3 after L2", "L1 after A0", "L2 after A1"};

struct EventOutcome : CheckedRun {
  int edges = 0;  // of the five, how many held in the run
};

// How many of the five edges held in the run: the first op ended before the second one started.
int edges_kept(const Run& run) {
  static constexpr const char* kPairs[kEdges][2] = {
      {"L0", "A1"}, {"L1", "A2"}, {"L2", "A3"}, {"A0", "L1"}, {"A1", "L2"}};
  int kept = 0;
  for (const auto& pair : kPairs) kept += run.span(pair[0]).ended <= run.span(pair[1]).started ? 1 : 0;
  return kept;
}

Table edges_table(int seeds, std::vector<int>& wrong) {
  Table table(fmt::format("each edge left out in turn: wrong results in {} random orders (on cpu)", seeds),
              {"left out=without", "wrong", "of=runs"});
  for (int edge = 0; edge <= kEdges; ++edge) {
    wrong.push_back(wrong_without_edge(seeds, edge));
    table.row({word(edge == 0 ? "nothing" : fmt::format("{}: {}", edge, kEdgeNames[edge - 1])), number(wrong.back()),
               number(seeds)});
  }
  return table;
}

}  // namespace

CheckedRun run_two_slots(const Bench& bench, EventScheme use, std::size_t bytes, const Work& add) {
  const Device device = bench.open({.compute_workers = 1});
  TwoSlots program(device, bytes, add);
  Run run = bench.measure(
      device, program.streams(), [&] { program.issue(use); }, [&] { program.prepare(); });
  return {std::move(run), program.ok()};
}

int wrong_without_edge(int seeds, int edge) {
  return wrong_in_random_orders(seeds, [&](const Device& device) {
    TwoSlots program(device, 4096, {});
    program.prepare();
    program.issue(EventScheme::kThree, edge);
    device.sync();
    return program.ok();
  });
}

void lab_events(const Bench& bench, Report& report) {
  const std::size_t size = bench.bytes(bench.virtual_time() ? 4 << 20 : bench.copy_bytes() / 4);
  const Picos load = bench.upload_time(size);
  const Work add = bench.work(2 * load);
  const int seeds = bench.quick() ? 40 : 100;
  report.ask(
      "How many events do two weight slots need? The layers A0..A3 and the loads L0..L2 need five edges between the "
      "streams: each layer after its load, and the loads into a used slot after the layer that read it. An event can "
      "be recorded again; a wait refers to the last record issued before it. Look at `L1 || A1`: whether load L1 "
      "overlaps layer A1.");
  Table table("", {"case", "events", "edges", "L1 || A1=together", "time=time_ps", "overlap=overlap_percent",
                   "exposed=exposed_ps", "memory=peak_bytes", "result=ok"});
  std::vector<EventOutcome> seen;
  for (const EventCase& each : kEventCases) {
    EventOutcome& outcome = seen.emplace_back(EventOutcome{run_two_slots(bench, each.use, size, add)});
    outcome.edges = edges_kept(outcome.run);
    const Figures& figures = outcome.run.figures;
    table.row({word(each.name), number(each.events), number(outcome.edges),
               yes_no(together(outcome.run.span("L1"), outcome.run.span("A1"))), time(figures.total),
               percent(figures.overlap_percent()), time(figures.exposed), bytes(outcome.run.peak_bytes),
               result(outcome.ok)});
  }
  report.show(table);
  std::vector<int> wrong;
  report.show(edges_table(seeds, wrong));
  int needed = 0;
  for (int edge = 1; edge <= kEdges; ++edge) needed += wrong[static_cast<std::size_t>(edge)] > 0 ? 1 : 0;
  const auto longer = [&](std::size_t i) {
    return base::format_times(ratio(seen[i].run.figures.total, seen[0].run.figures.total));
  };
  const int edges = std::ranges::min(seen, {}, &EventOutcome::edges).edges;  // the minimum of all cases
  report.conclude(
      fmt::format("{}: {} of {} edges held. With each wait just before its op, two events took {} of the time of "
                  "three. With each wait just after its record, two events took {} and one event took {}. Leaving out "
                  "one edge gave wrong results for {} of the {} edges; with all edges, {} of {} orders were wrong.",
                  borne_out("One event is enough for all edges", edges == kEdges), edges, kEdges, longer(1), longer(2),
                  longer(3), needed, kEdges, wrong[0], seeds));
}

}  // namespace slip::cli
