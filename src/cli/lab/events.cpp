// Lab events: how many events the two weight slots need, and that each of the five edges is needed.
#include <algorithm>

#include "cli/lab/bench.hpp"
#include "cli/lab/two_slots.hpp"

namespace slip::cli {
namespace {

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

struct EventOutcome : SlotsRun {
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
