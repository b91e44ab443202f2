// check_plan() of weight_groups.hpp: refuses a plan for another graph, and a plan that overwrites bytes in use.
#include <algorithm>

#include "base/fail.hpp"
#include "flow/weights/arena.hpp"
#include "flow/weights/weight_groups.hpp"

namespace slip::flow {
namespace {

template <class... Values>
[[noreturn]] void refuse(Here here, fmt::format_string<Values...> why, Values&&... values) {
  base::fail(ErrorCode::kInvalidValue, here, "the plan {}", fmt::format(why, std::forward<Values>(values)...));
}

bool fits(std::uint64_t offset, std::uint64_t bytes, std::uint64_t room) {
  return offset % kAlignment == 0 && offset <= room && bytes <= room - offset;
}

// The weight groups depend on the graph alone, so the plan must have the groups that make_weight_groups() gives.
void check_groups(const WeightsPlan& plan, const Graph& graph, Here here) {
  const std::vector<WeightGroup> groups = make_weight_groups(graph);
  const auto same_part = [](const WeightGroup::Part& a, const WeightGroup::Part& b) {
    return a.offset == b.offset && a.bytes.value == b.bytes.value && a.bytes.offset == b.bytes.offset &&
           a.bytes.bytes == b.bytes.bytes;
  };
  const auto same = [&](const WeightGroup& a, const WeightGroup& b) {
    return a.bytes == b.bytes && a.ops == b.ops && std::ranges::equal(a.parts, b.parts, same_part);
  };
  if (!std::ranges::equal(plan.groups, groups, same))
    refuse(here, "is for another graph: its {} weight groups are not the {} of this graph", plan.groups.size(),
           groups.size());
  for (const WeightGroup& group : plan.groups) {
    const std::string& name = graph[group.parts.front().bytes.value].name;
    if (group.resident && !fits(group.offset, group.stored_bytes(), plan.resident_bytes))
      refuse(here, "puts weight '{}' of {} bytes at {}, which does not fit {} bytes of resident weights", name,
             group.stored_bytes(), group.offset, plan.resident_bytes);
    // A packed group has at least a block, and is at most a little larger than what it decodes to.
    if (group.compressed_bytes % 16 != 0 || group.compressed_bytes / 2 > group.bytes + 4096)
      refuse(here, "has weight '{}' of {} bytes compressed to {}, which no encoder gives", name, group.bytes,
             group.compressed_bytes);
  }
}

void check_load(const WeightsPlan& plan, const Graph& graph, std::size_t index, Here here) {
  const WeightLoad& load = plan.loads[index];
  const std::size_t ops = graph.ops().size();
  const auto refuse_load = [&](const std::string& why) { refuse(here, "has a load {} that {}", index, why); };
  if (load.group >= plan.groups.size())
    refuse_load(fmt::format("is of group {} of {}", load.group, plan.groups.size()));
  if (load.first_op >= ops || load.last_op >= ops || (load.after_op != kNoOp && load.after_op >= ops))
    refuse_load(fmt::format("names an op that this graph of {} ops does not have", ops));
  const WeightGroup& group = plan.groups[load.group];
  if (!fits(load.offset, group.bytes + group.room, plan.ring_bytes))
    refuse_load(fmt::format("lies at {} and does not fit a ring of {} bytes", load.offset, plan.ring_bytes));
  if (load.last_op < load.first_op || (index > 0 && load.first_op < plan.loads[index - 1].first_op))
    refuse_load("is out of order");
  if (load.after_op != kNoOp && !load.step_before && load.after_op >= load.first_op)
    refuse_load("waits for an op that waits for it");
}

void check_values(const WeightsPlan& plan, const Graph& graph, Here here) {
  const std::vector<bool> placed = placed_values(graph);
  if (plan.value_offsets.size() != placed.size())
    refuse(here, "is for a graph of {} values, this one has {}", plan.value_offsets.size(), placed.size());
  for (std::size_t i = 0; i < placed.size(); ++i) {
    const GraphValue& value = graph.values()[i];
    if (placed[i] && !fits(plan.value_offsets[i], value.bytes, plan.activation_bytes))
      refuse(here, "puts value '{}' of {} bytes at {}, which does not fit {} bytes of activations", value.name,
             value.bytes, plan.value_offsets[i], plan.activation_bytes);
  }
  if (const auto both = arena_conflict(graph, plan.value_offsets))
    refuse(here, "puts values '{}' and '{}', which are live at the same time, on the same bytes",
           graph[both->first].name, graph[both->second].name);
}

void check_resident(const WeightsPlan& plan, const Graph& graph, Here here) {
  std::vector<const WeightGroup*> groups;
  for (const WeightGroup& group : plan.groups) {
    if (group.resident) groups.push_back(&group);
  }
  std::ranges::sort(groups, {}, [](const WeightGroup* group) { return group->offset; });
  for (std::size_t i = 1; i < groups.size(); ++i) {
    if (groups[i - 1]->offset + groups[i - 1]->stored_bytes() > groups[i]->offset)
      refuse(here, "puts resident weights '{}' and '{}' on the same bytes, at {}",
             graph[groups[i - 1]->parts.front().bytes.value].name, graph[groups[i]->parts.front().bytes.value].name,
             groups[i]->offset);
  }
}

// Every use of a streamed group has a load, and no load overwrites another one that is still needed.
void check_loads(const WeightsPlan& plan, const Graph& graph, Here here) {
  std::vector<std::vector<const WeightLoad*>> loads_of(plan.groups.size());
  std::vector<Placed> placed;
  for (const WeightLoad& load : plan.loads) {
    loads_of[load.group].push_back(&load);
    placed.push_back({load.first_op, load.last_op, load.offset, plan.groups[load.group].bytes});
  }
  const auto name_of = [&](std::uint32_t group) { return graph[plan.groups[group].parts.front().bytes.value].name; };
  for (std::uint32_t i = 0; i < plan.groups.size(); ++i) {
    if (plan.groups[i].in_place()) continue;
    for (const std::uint32_t op : plan.groups[i].ops) {
      const bool loaded = std::ranges::any_of(
          loads_of[i], [&](const WeightLoad* load) { return load->first_op <= op && op <= load->last_op; });
      if (!loaded) refuse(here, "neither keeps nor loads weight '{}' for op '{}'", name_of(i), graph.ops()[op].name);
    }
  }
  const auto both = find_overlap(placed);
  if (!both) return;
  const WeightLoad &old = plan.loads[both->first], &load = plan.loads[both->second];
  refuse(here, "loads weight '{}' over '{}', which op '{}' still needs", name_of(load.group), name_of(old.group),
         graph.ops()[old.last_op].name);
}

}  // namespace

void check_plan(const WeightsPlan& plan, const Graph& graph, Here here) {
  check_groups(plan, graph, here);
  check_resident(plan, graph, here);
  for (std::size_t i = 0; i < plan.loads.size(); ++i) check_load(plan, graph, i, here);
  check_loads(plan, graph, here);
  check_values(plan, graph, here);
}

}  // namespace slip::flow
