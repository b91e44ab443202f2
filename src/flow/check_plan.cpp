#include "flow/check_plan.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "flow/arena.hpp"
#include "flow/units.hpp"

namespace slip {
namespace {

void check_resident(const WeightsPlan& plan, const Graph& graph, Here here) {
  std::vector<const WeightUnit*> units;
  for (const WeightUnit& unit : plan.units) {
    if (unit.resident) units.push_back(&unit);
  }
  std::ranges::sort(units, {}, [](const WeightUnit* unit) { return unit->offset; });
  for (std::size_t i = 1; i < units.size(); ++i) {
    if (units[i - 1]->offset + units[i - 1]->bytes > units[i]->offset)
      throw Error(Code::kInvalidValue,
                  fmt::format("the plan puts resident weights '{}' and '{}' on the same bytes, at {}",
                              graph[units[i - 1]->parts.front().bytes.value].name,
                              graph[units[i]->parts.front().bytes.value].name, units[i]->offset),
                  here);
  }
}

// Every use of a streamed unit has a load, and no load lies on one that is still needed.
void check_loads(const WeightsPlan& plan, const Graph& graph, Here here) {
  for (std::uint32_t i = 0; i < plan.units.size(); ++i) {
    if (plan.units[i].resident) continue;
    for (const std::uint32_t op : plan.units[i].ops) {
      const bool loaded = std::ranges::any_of(plan.loads, [&](const WeightLoad& load) {
        return load.unit == i && load.first_op <= op && op <= load.last_op;
      });
      if (!loaded)
        throw Error(Code::kInvalidValue,
                    fmt::format("the plan neither keeps nor loads weight '{}' for op '{}'",
                                graph[plan.units[i].parts.front().bytes.value].name, graph.ops()[op].name),
                    here);
    }
  }
  for (std::size_t i = 0; i < plan.loads.size(); ++i) {
    const WeightLoad& load = plan.loads[i];
    const std::uint64_t end = load.offset + plan.units[load.unit].bytes;
    for (std::size_t k = 0; k < i; ++k) {
      const WeightLoad& old = plan.loads[k];
      if (old.last_op < load.first_op || old.offset >= end || old.offset + plan.units[old.unit].bytes <= load.offset)
        continue;
      throw Error(
          Code::kInvalidValue,
          fmt::format("the plan loads weight '{}' over '{}', which op '{}' still needs",
                      graph[plan.units[load.unit].parts.front().bytes.value].name,
                      graph[plan.units[old.unit].parts.front().bytes.value].name, graph.ops()[old.last_op].name),
          here);
    }
  }
}

}  // namespace

void check_plan(const WeightsPlan& plan, const Graph& graph, Here here) {
  check_resident(plan, graph, here);
  check_loads(plan, graph, here);
  if (const auto both = arena_conflict(graph, plan.value_offsets))
    throw Error(Code::kInvalidValue,
                fmt::format("the plan puts values '{}' and '{}', which are there at the same time, on the same bytes",
                            graph[both->first].name, graph[both->second].name),
                here);
}

}  // namespace slip
