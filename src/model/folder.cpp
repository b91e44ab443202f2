#include "model/folder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/fail.hpp"
#include "base/json_fields.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/kernels.hpp"
#include "store/file.hpp"

namespace slip::model {
namespace {

constexpr const char* kGraphFile = "graph.json";
constexpr std::uint64_t kMaxGraphBytes = 256'000'000;
constexpr const char* kFormat = "slip graph";
constexpr std::uint64_t kVersion = 1;

constexpr const char* kRoles[] = {"input", "weight", "state"};  // by ValueRole; activations are not written

std::string text_of(const Graph& graph, const GraphOp& op, BuiltIn kind) {
  std::vector<std::string> reads;
  for (const ValueBytes& read : op.reads) reads.push_back(base::json_string(graph[read.value].name));
  std::string epsilon;
  if (kind == BuiltIn::kRmsNorm || kind == BuiltIn::kLayerNorm)
    epsilon = fmt::format(", \"epsilon\": {}", op.scalars.at(3).as<double>());
  // Not op.name: a part of a linear has a number appended.
  return fmt::format("{{\"op\": \"{}\", \"name\": {}, \"reads\": [{}]{}}}", kernel_of(kind).name.text(),
                     base::json_string(graph[op.writes.front().value].name), fmt::join(reads, ", "), epsilon);
}

[[noreturn]] void refuse(const std::string& op, const char* why, Here here) {
  base::fail(ErrorCode::kInvalidValue, here, "op '{}' {}: only graphs of built-in ops can be written", op, why);
}

std::vector<std::string> texts_of_ops(const Graph& graph, Here here) {
  std::vector<std::string> texts;
  const GraphOp* before = nullptr;
  for (const GraphOp& op : graph.ops()) {
    const std::optional<BuiltIn> kind = built_in_of(op.kernel);
    if (!kind || op.writes.size() != 1) refuse(op.name, "is none of the library's", here);
    const bool part = before && before->kernel == op.kernel && before->writes.front().value == op.writes.front().value;
    before = &op;
    if (!part) texts.push_back(text_of(graph, op, *kind));
  }
  return texts;
}

bool same_bytes(const Graph& a, const std::vector<ValueBytes>& of_a, const Graph& b,
                const std::vector<ValueBytes>& of_b) {
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [&](const ValueBytes& x, const ValueBytes& y) {
    return a[x.value].name == b[y.value].name && x.offset == y.offset && x.bytes == y.bytes;
  });
}

// An op that was added with add_op and a built-in kernel may differ from the built-in op: then the graph is not
// written.
void require_same(const Graph& graph, const Graph& again, Here here) {
  for (std::size_t i = 0; i < graph.ops().size(); ++i) {
    const GraphOp& op = graph.ops()[i];
    if (i >= again.ops().size() || op.name != again.ops()[i].name || op.kernel != again.ops()[i].kernel ||
        !same_bytes(graph, op.reads, again, again.ops()[i].reads) ||
        !same_bytes(graph, op.writes, again, again.ops()[i].writes))
      refuse(op.name, "was added by hand", here);
  }
  for (const GraphValue& value : graph.values()) {
    const std::optional<Value> found = again.find(value.name);
    if (!found || again[*found].type != value.type || again[*found].shape != value.shape)
      base::fail(ErrorCode::kInvalidValue, here,
                 "value '{}' is made by no op, or not as it was declared: it cannot be written", value.name);
  }
}

constexpr std::uint64_t kAny = UINT64_MAX;  // Graph itself checks sizes
constexpr std::size_t kMaxDimensions = 64;

// Calls a function of Graph, as a program would. Its error gets the place in the file.
template <class Call>
void with_place(const base::JsonFields& fields, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kParse) throw;
    fields.fail(fmt::format("is refused: {}", base::bare_text(error)));
  }
}

void read_value(base::JsonFields fields, Graph& graph) {
  const std::string name = fields.text("name"), role = fields.text("role"), type_name = fields.text("type");
  const Shape shape = fields.numbers("shape", kMaxDimensions, kAny);
  fields.finish();
  const std::optional<DataType> type = data_type_of(type_name);
  if (!type) fields.refuse("type", type_name, "the name of a data type, such as \"F32\", is expected");
  with_place(fields, [&] {
    if (role == "input") graph.input(name, *type, shape, {});
    else if (role == "weight") graph.weight(name, *type, shape, {});
    else if (role == "state") graph.state(name, *type, shape, {});
    else fields.refuse("role", role, "\"input\", \"weight\" or \"state\" is expected");
  });
}

void read_op(base::JsonFields fields, Graph& graph) {
  const std::string op = fields.text("op"), name = fields.text("name");
  const std::optional<BuiltIn> kind = built_in_of(op);
  if (!kind) fields.refuse("op", op, "the name of a built-in op is expected");
  const bool norm = *kind == BuiltIn::kRmsNorm || *kind == BuiltIn::kLayerNorm;
  const bool unary = *kind == BuiltIn::kRelu || *kind == BuiltIn::kGelu || *kind == BuiltIn::kSilu;
  const std::size_t wanted = *kind == BuiltIn::kLayerNorm ? 3 : unary ? 1 : 2;
  const std::vector<std::string> names = fields.texts("reads");
  if (names.size() != wanted)
    fields.refuse("reads", names, fmt::format("the names of {} values are expected, which {} takes", wanted, op));
  // Only the norms have an epsilon: for other ops it is an unknown field.
  const double epsilon =
      norm && fields.has("epsilon") ? fields.real("epsilon", 0, std::numeric_limits<double>::max()) : 1e-5;
  fields.finish();
  Value reads[3];
  for (std::size_t i = 0; i < wanted; ++i) {
    const std::optional<Value> found = graph.find(names[i]);
    if (!found) fields.refuse("reads", names[i], "the name of a value above, or of an earlier op, is expected");
    reads[i] = *found;
  }
  with_place(fields, [&] {
    switch (*kind) {
      case BuiltIn::kLinear: graph.linear(name, reads[0], reads[1], {}); break;
      case BuiltIn::kBias: graph.bias(name, reads[0], reads[1], {}); break;
      case BuiltIn::kAdd: graph.add(name, reads[0], reads[1], {}); break;
      case BuiltIn::kMultiply: graph.multiply(name, reads[0], reads[1], {}); break;
      case BuiltIn::kRelu: graph.relu(name, reads[0], {}); break;
      case BuiltIn::kGelu: graph.gelu(name, reads[0], {}); break;
      case BuiltIn::kSilu: graph.silu(name, reads[0], {}); break;
      case BuiltIn::kRmsNorm: graph.rms_norm(name, reads[0], reads[1], epsilon, {}); break;
      case BuiltIn::kLayerNorm: graph.layer_norm(name, reads[0], reads[1], reads[2], epsilon, {}); break;
    }
  });
}

GraphOptions read_options(base::JsonFields& fields) {
  GraphOptions options;
  if (fields.has("part_bytes")) options.part_bytes = fields.number("part_bytes", kAny);
  if (fields.has("join_bytes")) options.join_bytes = fields.number("join_bytes", kAny);
  return options;
}

struct Shard {
  std::string name;
  std::vector<Value> weights;
};

// Distributes the weights, in the order of the graph, to shards of about the same size. No shard is empty.
std::vector<Shard> share_out(const Graph& graph, std::size_t count) {
  std::vector<Value> weights;
  for (std::uint32_t i = 0; i < graph.values().size(); ++i) {
    if (graph.values()[i].role == ValueRole::kWeight) weights.push_back({i});
  }
  count = std::clamp<std::size_t>(count, 1, std::max<std::size_t>(weights.size(), 1));
  std::vector<Shard> shards(count);
  std::uint64_t left = graph.bytes_of(ValueRole::kWeight), filled = 0;
  std::size_t current = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // Starts the next shard when this one has its share of the remaining bytes, or when there are as many shards left
    // as weights.
    const bool full = !shards[current].weights.empty() && filled * (count - current) >= left + filled;
    const bool must = weights.size() - i < count - current && !shards[current].weights.empty();
    if (current + 1 < count && (full || must)) ++current, filled = 0;
    shards[current].weights.push_back(weights[i]);
    filled += graph[weights[i]].bytes;
    left -= graph[weights[i]].bytes;
  }
  for (std::size_t i = 0; i < count; ++i)
    shards[i].name = count == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
  return shards;
}

void require_empty(const std::string& folder, Here here) {
  for (const char* ending : {kGraphFile, ".safetensors", ".safetensors.index.json"}) {
    const std::vector<std::string> names = store::files_in(folder, ending, here);
    if (!names.empty())
      base::fail(ErrorCode::kInvalidValue, here,
                 "'{}' holds '{}' already: name another folder, or remove this model first", folder, names[0]);
  }
}

std::string index_of(const Graph& graph, const std::vector<Shard>& shards) {
  std::vector<std::string> entries;
  for (const Shard& shard : shards) {
    for (const Value weight : shard.weights)
      entries.push_back(fmt::format("\n {}: \"{}\"", base::json_string(graph[weight].name), shard.name));
  }
  return fmt::format("{{\"metadata\": {{\"total_size\": {}}}, \"weight_map\": {{{}}}}}\n",
                     graph.bytes_of(ValueRole::kWeight), fmt::join(entries, ","));
}

}  // namespace

std::string graph_text(const Graph& graph, Here here) {
  std::vector<std::string> values, outputs;
  for (const GraphValue& value : graph.values()) {
    if (value.output) outputs.push_back(base::json_string(value.name));
    if (value.role == ValueRole::kActivation) continue;
    values.push_back(fmt::format("{{\"name\": {}, \"role\": \"{}\", \"type\": \"{}\", \"shape\": {}}}",
                                 base::json_string(value.name), kRoles[static_cast<std::size_t>(value.role)],
                                 data_type_name(value.type), shape_text(value.shape)));
  }
  std::string text = fmt::format("{{\"format\": \"{}\", \"version\": {}, \"part_bytes\": {}, \"join_bytes\": {}",
                                 kFormat, kVersion, graph.options().part_bytes, graph.options().join_bytes);
  const auto add_list = [&](const char* name, const std::vector<std::string>& entries) {  // one entry per line
    text += fmt::format(",\n\"{}\": [{}{}]", name, entries.empty() ? "" : "\n ", fmt::join(entries, ",\n "));
  };
  add_list("values", values);
  add_list("ops", texts_of_ops(graph, here));
  add_list("outputs", outputs);
  text += "}\n";
  require_same(graph, parse_graph(text, "graph", here), here);
  return text;
}

Graph parse_graph(std::string_view text, const std::string& name, Here here) {
  const base::Json json = base::parse_json(text, name, kMaxGraphBytes, here);
  base::JsonFields fields(json, name, here);
  if (const std::string format = fields.text("format"); format != kFormat)
    fields.refuse("format", format, fmt::format("\"{}\" is expected: this is no graph", kFormat));
  if (const std::uint64_t version = fields.number("version"); version != kVersion)
    fields.refuse("version", version, fmt::format("version {} is expected, which this program knows", kVersion));
  Graph graph(read_options(fields));
  const auto objects = [&](const char* key) {
    return fields.has(key) ? fields.objects(key) : std::vector<base::JsonFields>();
  };
  for (const base::JsonFields& value : objects("values")) read_value(value, graph);
  for (const base::JsonFields& op : objects("ops")) read_op(op, graph);
  const std::vector<std::string> outputs = fields.has("outputs") ? fields.texts("outputs") : std::vector<std::string>();
  fields.finish();
  for (const std::string& output : outputs) {
    const std::optional<Value> found = graph.find(output);
    if (!found) fields.refuse("outputs", output, "the name of a value of this graph is expected");
    with_place(fields, [&] { graph.output(*found, {}); });
  }
  return graph;
}

void require_weights(const Graph& graph, const TensorFiles& tensors, Here here) {
  for (const GraphValue& value : graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    const TensorInfo& tensor = tensors.at(value.name, here);
    if (tensor.type != value.type || tensor.shape != value.shape)
      base::fail(ErrorCode::kInvalidValue, here, "weight '{}' is {} {} in the graph, and {} {} in '{}'", value.name,
                 data_type_name(value.type), shape_text(value.shape), data_type_name(tensor.type),
                 shape_text(tensor.shape), tensors.paths()[tensor.file]);
  }
}

void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards, Here here) {
  const std::string text = graph_text(graph, here);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) base::fail(ErrorCode::kIo, here, "cannot make the folder '{}': {}", folder, failed.message());
  require_empty(folder, here);
  const std::vector<Shard> parts = share_out(graph, shards);
  for (const Shard& shard : parts) {
    std::vector<TensorShape> tensors;
    for (const Value weight : shard.weights)
      tensors.push_back({graph[weight].name, graph[weight].type, graph[weight].shape});
    const FillTensor fill_one = [&](std::size_t index, std::uint64_t offset, std::span<std::byte> into) {
      fill(shard.weights[index], offset, into);
    };
    write_tensors(folder + "/" + shard.name, tensors, fill_one, {}, here);
  }
  if (parts.size() > 1) base::write_file(folder + "/model.safetensors.index.json", index_of(graph, parts), here);
  base::write_file(folder + "/" + kGraphFile, text, here);
}

}  // namespace slip::model

namespace slip {
using namespace model;

void write_graph(const Graph& graph, const std::string& path, Here here) {
  base::write_file(path, graph_text(graph, here), here);
}

Graph read_graph(const std::string& path, Here here) {
  return parse_graph(store::read_text(path, kMaxGraphBytes, "a graph", here), path, here);
}

}  // namespace slip
