// Plans as JSON. The file names values and ops, so that reading notices a plan that is for another graph.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/output_file.hpp"
#include "flow/weights/arena.hpp"
#include "flow/weights/weight_groups.hpp"
#include "slip/weights.hpp"
#include "store/file.hpp"

namespace slip {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kMaxBytes = 256'000'000;
constexpr const char* kFormat = "slipstream weights plan 1";

Json op_name(const Graph& graph, std::uint32_t op) { return op == kNoOp ? Json() : Json(graph.ops()[op].name); }

Json group_json(const WeightGroup& group, const Graph& graph) {
  Json json;
  json["bytes"] = group.bytes;
  json["resident"] = group.resident;
  if (group.resident) json["offset"] = group.offset;
  if (group.from_disk) json["from_disk"] = true;
  if (group.room > 0) json["room"] = group.room;
  for (const WeightGroup::Part& part : group.parts)
    json["parts"].push_back({{"weight", graph[part.bytes.value].name},
                             {"from", part.bytes.offset},
                             {"bytes", part.bytes.bytes},
                             {"at", part.offset}});
  return json;
}

// Reads the fields of a JSON object; each error names the path of the field in the file.
class PlanFields {
 public:
  PlanFields(const Json& json, std::string place, Here here) : json_(json), place_(std::move(place)), here_(here) {
    if (!json.is_object()) fail("is no object");
  }
  std::uint64_t number(const char* key, std::uint64_t most = std::uint64_t{1} << 60) const {
    const Json& value = at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most)
      fail(fmt::format("\"{}\" is {}, but a whole number from 0 to {} is expected", key, value.dump(), most));
    return value.get<std::uint64_t>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    if (!value.is_string()) fail(fmt::format("\"{}\" is {}, but a text is expected", key, value.dump()));
    return value.get<std::string>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (!json_.contains(key)) return otherwise;
    if (!at(key).is_boolean()) fail(fmt::format("\"{}\" is {}, but true or false is expected", key, at(key).dump()));
    return at(key).get<bool>();
  }
  const Json& list(const char* key) const {
    const Json& value = at(key);
    if (!value.is_array()) fail(fmt::format("\"{}\" is no list", key));
    return value;
  }
  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  PlanFields item(const char* key, std::size_t index) const {
    return {list(key)[index], fmt::format("{}.{}[{}]", place_, key, index), here_};
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Code::kParse, fmt::format("{} {}", place_, what), here_);
  }

 private:
  const Json& at(const char* key) const {
    if (!json_.contains(key)) fail(fmt::format("has no \"{}\"", key));
    return json_.at(key);
  }
  const Json& json_;
  std::string place_;
  Here here_;
};

// The graph gives the weight groups; the file says which of them are resident, and where.
void read_groups(const PlanFields& fields, const Graph& graph, WeightsPlan& plan) {
  plan.units = make_weight_groups(graph);
  if (fields.list("units").size() != plan.units.size())
    fields.fail(fmt::format("has {} groups, but this graph has {}", fields.list("units").size(), plan.units.size()));
  for (std::size_t i = 0; i < plan.units.size(); ++i) {
    const PlanFields one = fields.item("units", i);
    WeightGroup& group = plan.units[i];
    const std::string& name = graph[group.parts.front().bytes.value].name;
    if (one.number("bytes") != group.bytes || one.item("parts", 0).text("weight") != name)
      one.fail(fmt::format("is not the group of {} bytes that begins with weight '{}': the plan is for another graph",
                           group.bytes, name));
    group.resident = one.flag("resident", false);
    group.from_disk = one.flag("from_disk", false);
    if (one.has("room")) group.room = one.number("room");
    if (group.resident) group.offset = one.number("offset");
  }
}

std::uint32_t read_op(const PlanFields& fields, const char* key, const Graph& graph) {
  const std::string name = fields.text(key);
  for (std::uint32_t op = 0; op < graph.ops().size(); ++op) {
    if (graph.ops()[op].name == name) return op;
  }
  fields.fail(fmt::format("names op '{}', which this graph does not have", name));
}

void read_loads(const PlanFields& fields, const Graph& graph, WeightsPlan& plan) {
  for (std::size_t i = 0; i < fields.list("loads").size(); ++i) {
    const PlanFields one = fields.item("loads", i);
    WeightLoad load;
    load.unit = static_cast<std::uint32_t>(one.number("unit", UINT32_MAX));
    if (load.unit >= plan.units.size())
      one.fail(fmt::format("is of group {}, but this graph has {}", load.unit, plan.units.size()));
    load.offset = one.number("offset");
    load.first_op = read_op(one, "first_op", graph);
    load.last_op = read_op(one, "last_op", graph);
    if (one.has("after_op")) load.after_op = read_op(one, "after_op", graph);
    load.step_before = one.flag("step_before", false);
    plan.streamed_bytes += plan.units[load.unit].bytes;
    plan.loads.push_back(load);
  }
}

void read_values(const PlanFields& fields, const Graph& graph, WeightsPlan& plan) {
  plan.value_offsets.assign(graph.values().size(), 0);
  std::vector<bool> missing = placed_values(graph);
  for (std::size_t i = 0; i < fields.list("values").size(); ++i) {
    const PlanFields one = fields.item("values", i);
    const std::optional<Value> value = graph.find(one.text("name"));
    if (!value) one.fail(fmt::format("names value '{}', which this graph does not have", one.text("name")));
    plan.value_offsets[value->index] = one.number("offset");
    missing[value->index] = false;
  }
  for (std::size_t i = 0; i < missing.size(); ++i) {
    if (missing[i]) fields.fail(fmt::format("has no place for value '{}'", graph.values()[i].name));
  }
}

}  // namespace

void write_weights_plan(const WeightsPlan& plan, const Graph& graph, const std::string& path, Here here) {
  check_plan(plan, graph, here);
  Json json;
  json["format"] = kFormat;
  json["resident_bytes"] = plan.resident_bytes;
  json["ring_bytes"] = plan.ring_bytes;
  json["activation_bytes"] = plan.activation_bytes;
  json["activation_bound"] = plan.activation_bound;
  if (plan.budget) json["budget"] = *plan.budget;
  json["predicted_ps"] = {
      {"step", plan.step}, {"bound", plan.bound}, {"compute", plan.compute}, {"loading", plan.loading}};
  json["units"] = Json::array();
  for (const WeightGroup& group : plan.units) json["units"].push_back(group_json(group, graph));
  json["loads"] = Json::array();
  for (const WeightLoad& load : plan.loads)
    json["loads"].push_back({{"unit", load.unit},
                             {"offset", load.offset},
                             {"first_op", op_name(graph, load.first_op)},
                             {"last_op", op_name(graph, load.last_op)},
                             {"after_op", op_name(graph, load.after_op)},
                             {"step_before", load.step_before}});
  json["values"] = Json::array();
  const std::vector<bool> placed = placed_values(graph);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    if (placed[i]) json["values"].push_back({{"name", graph.values()[i].name}, {"offset", plan.value_offsets[i]}});
  }
  OutputFile file(path, here);
  file.write(json.dump(1) + "\n");
  file.finish();
}

WeightsPlan read_weights_plan(const Graph& graph, const std::string& path, Here here) {
  const File file = File::open(path, here);
  if (file.size() > kMaxBytes)
    throw Error(Code::kParse, fmt::format("'{}' has {} bytes: not a plan", path, file.size()), here);
  std::string text(file.size(), '\0');
  file.read(0, text.data(), text.size(), here);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(Code::kParse, fmt::format("'{}' is no JSON: {}", path, error.what()), here);
  }
  const PlanFields fields(json, fmt::format("'{}':", path), here);
  if (fields.text("format") != kFormat)
    fields.fail(fmt::format("has the format \"{}\", not \"{}\"", fields.text("format"), kFormat));
  WeightsPlan plan;
  plan.resident_bytes = fields.number("resident_bytes");
  plan.ring_bytes = fields.number("ring_bytes");
  plan.activation_bytes = fields.number("activation_bytes");
  plan.activation_bound = fields.number("activation_bound");
  if (fields.has("budget")) plan.budget = fields.number("budget");
  read_groups(fields, graph, plan);
  read_loads(fields, graph, plan);
  read_values(fields, graph, plan);
  if (json.contains("predicted_ps")) {
    const PlanFields times(json.at("predicted_ps"), fmt::format("'{}': predicted_ps", path), here);
    plan.step = static_cast<Picos>(times.number("step"));
    plan.bound = static_cast<Picos>(times.number("bound"));
    plan.compute = static_cast<Picos>(times.number("compute"));
    plan.loading = static_cast<Picos>(times.number("loading"));
  }
  check_plan(plan, graph, here);
  return plan;
}

}  // namespace slip
