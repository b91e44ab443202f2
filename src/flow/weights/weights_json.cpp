// Plans as JSON. The file has the names of values and ops, so that the reader detects a plan for another graph.
#include <fmt/format.h>

#include <algorithm>

#include "base/json_fields.hpp"
#include "base/output_file.hpp"
#include "flow/weights/arena.hpp"
#include "flow/weights/weight_groups.hpp"
#include "slip/weights.hpp"
#include "store/file.hpp"

namespace slip {
namespace {

using OrderedJson = nlohmann::ordered_json;  // written in the order of the calls

constexpr std::uint64_t kMaxBytes = 256'000'000;
constexpr const char* kFormat = "slipstream weights plan 1";

OrderedJson op_name(const Graph& graph, std::uint32_t op) {
  return op == kNoOp ? OrderedJson() : OrderedJson(graph.ops()[op].name);
}

OrderedJson group_json(const WeightGroup& group, const Graph& graph) {
  OrderedJson json;
  json["bytes"] = group.bytes;
  json["resident"] = group.resident;
  if (group.resident) json["offset"] = group.offset;
  if (group.from_disk) json["from_disk"] = true;
  if (group.compressed_bytes > 0) json["compressed_bytes"] = group.compressed_bytes;
  if (group.room > 0) json["room"] = group.room;
  for (const WeightGroup::Part& part : group.parts)
    json["parts"].push_back({{"weight", graph[part.bytes.value].name},
                             {"from", part.bytes.offset},
                             {"bytes", part.bytes.bytes},
                             {"at", part.offset}});
  return json;
}

// The parts of a group follow from the graph. So they are not read, but must be the same.
void check_parts(base::JsonFields& fields, const Graph& graph, const WeightGroup& group) {
  std::vector<base::JsonFields> parts = fields.objects("parts");
  bool same = fields.number("bytes") == group.bytes && parts.size() == group.parts.size();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    base::JsonFields& one = parts[i];
    const std::string name = one.text("weight");
    const std::uint64_t from = one.number("from"), bytes = one.number("bytes"), at = one.number("at");
    one.finish();
    if (!same) continue;
    const WeightGroup::Part& part = group.parts[i];
    same = name == graph[part.bytes.value].name && from == part.bytes.offset && bytes == part.bytes.bytes &&
           at == part.offset;
  }
  if (!same)
    fields.fail(fmt::format("is not the group of {} bytes that begins with weight '{}': the plan is for another graph",
                            group.bytes, graph[group.parts.front().bytes.value].name));
}

// The graph gives the weight groups; the file says which of them are resident, and where. Files of earlier versions
// have the keys "units" and "unit" for "groups" and "group".
void read_groups(base::JsonFields& fields, const Graph& graph, WeightsPlan& plan) {
  plan.groups = flow::make_weight_groups(graph);
  std::vector<base::JsonFields> listed = fields.objects(fields.has("units") ? "units" : "groups");
  if (listed.size() != plan.groups.size())
    fields.fail(fmt::format("has {} groups, but this graph has {}", listed.size(), plan.groups.size()));
  for (std::size_t i = 0; i < plan.groups.size(); ++i) {
    base::JsonFields& one = listed[i];
    WeightGroup& group = plan.groups[i];
    check_parts(one, graph, group);
    group.resident = one.boolean("resident", false);
    group.from_disk = one.boolean("from_disk", false);
    if (one.has("room")) group.room = one.number("room");
    if (one.has("compressed_bytes")) group.compressed_bytes = one.number("compressed_bytes");
    if (group.resident) group.offset = one.number("offset");
    one.finish();
  }
}

std::uint32_t read_op(base::JsonFields& fields, const char* key, const Graph& graph) {
  const std::string name = fields.text(key);
  const auto op = std::ranges::find(graph.ops(), name, &GraphOp::name);
  if (op == graph.ops().end()) fields.refuse(key, name, "the name of an op of this graph is expected");
  return static_cast<std::uint32_t>(op - graph.ops().begin());
}

void read_loads(base::JsonFields& fields, const Graph& graph, WeightsPlan& plan) {
  std::vector<base::JsonFields> listed = fields.objects("loads");
  if (plan.groups.empty() && !listed.empty()) fields.fail("has loads, but this graph has no weights");
  for (base::JsonFields& one : listed) {
    WeightLoad load;
    load.group = static_cast<std::uint32_t>(one.number(one.has("unit") ? "unit" : "group", plan.groups.size() - 1));
    load.offset = one.number("offset");
    load.first_op = read_op(one, "first_op", graph);
    load.last_op = read_op(one, "last_op", graph);
    if (one.has("after_op")) load.after_op = read_op(one, "after_op", graph);
    load.step_before = one.boolean("step_before", false);
    one.finish();
    if (!plan.groups[load.group].resident) plan.streamed_bytes += plan.groups[load.group].bytes;
    plan.loads.push_back(load);
  }
}

void read_values(base::JsonFields& fields, const Graph& graph, WeightsPlan& plan) {
  plan.value_offsets.assign(graph.values().size(), 0);
  std::vector<bool> missing = flow::placed_values(graph);
  for (base::JsonFields& one : fields.objects("values")) {
    const std::string name = one.text("name");
    const std::optional<Value> value = graph.find(name);
    if (!value || !missing[value->index])
      one.refuse("name", name, "the name of a value of this graph that has a place on the device is expected, once");
    plan.value_offsets[value->index] = one.number("offset");
    missing[value->index] = false;
    one.finish();
  }
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (missing[i]) fields.fail(fmt::format("has no place for value '{}'", graph.values()[i].name));
  }
}

}  // namespace

void write_weights_plan(const WeightsPlan& plan, const Graph& graph, const std::string& path, Here here) {
  flow::check_plan(plan, graph, here);
  OrderedJson json;
  json["format"] = kFormat;
  json["resident_bytes"] = plan.resident_bytes;
  json["ring_bytes"] = plan.ring_bytes;
  if (plan.slot_bytes > 0) json["slot_bytes"] = plan.slot_bytes;
  json["activation_bytes"] = plan.activation_bytes;
  json["activation_bound"] = plan.activation_bound;
  if (plan.budget) json["budget"] = *plan.budget;
  json["predicted_ps"] = {
      {"step", plan.step}, {"bound", plan.bound}, {"compute", plan.compute}, {"loading", plan.loading}};
  if (plan.decoding > 0) json["predicted_ps"]["decoding"] = plan.decoding;
  json["groups"] = OrderedJson::array();
  for (const WeightGroup& group : plan.groups) json["groups"].push_back(group_json(group, graph));
  json["loads"] = OrderedJson::array();
  for (const WeightLoad& load : plan.loads)
    json["loads"].push_back({{"group", load.group},
                             {"offset", load.offset},
                             {"first_op", op_name(graph, load.first_op)},
                             {"last_op", op_name(graph, load.last_op)},
                             {"after_op", op_name(graph, load.after_op)},
                             {"step_before", load.step_before}});
  json["values"] = OrderedJson::array();
  const std::vector<bool> placed = flow::placed_values(graph);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (placed[i]) json["values"].push_back({{"name", graph.values()[i].name}, {"offset", plan.value_offsets[i]}});
  }
  base::write_file(path, json.dump(1) + "\n", here);
}

WeightsPlan read_weights_plan(const Graph& graph, const std::string& path, Here here) {
  const base::Json json = base::parse_json(store::read_text(path, kMaxBytes, "a plan", here), path, kMaxBytes, here);
  base::JsonFields fields(json, path, here);
  if (const std::string format = fields.text("format"); format != kFormat)
    fields.refuse("format", format, fmt::format("\"{}\" is expected", kFormat));
  WeightsPlan plan;
  plan.resident_bytes = fields.number("resident_bytes");
  plan.ring_bytes = fields.number("ring_bytes");
  if (fields.has("slot_bytes")) plan.slot_bytes = fields.number("slot_bytes");
  plan.activation_bytes = fields.number("activation_bytes");
  plan.activation_bound = fields.number("activation_bound");
  if (fields.has("budget")) plan.budget = fields.number("budget");
  read_groups(fields, graph, plan);
  read_loads(fields, graph, plan);
  read_values(fields, graph, plan);
  if (fields.has("predicted_ps")) {
    base::JsonFields times = fields.object("predicted_ps");
    plan.step = static_cast<Picos>(times.number("step"));
    plan.bound = static_cast<Picos>(times.number("bound"));
    plan.compute = static_cast<Picos>(times.number("compute"));
    plan.loading = static_cast<Picos>(times.number("loading"));
    if (times.has("decoding")) plan.decoding = static_cast<Picos>(times.number("decoding"));
    times.finish();
  }
  fields.finish();
  flow::check_plan(plan, graph, here);
  return plan;
}

}  // namespace slip
