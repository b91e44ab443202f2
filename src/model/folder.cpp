#include "model/folder.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/fail.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/kernels.hpp"
#include "store/file.hpp"

namespace slip::model {
namespace {

constexpr const char* kGraphFile = "graph.json";
constexpr std::uint64_t kMaxGraphBytes = 256'000'000;

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
  base::fail(Code::kInvalidValue, here, "op '{}' {}: only graphs of built-in ops can be written", op, why);
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
      base::fail(Code::kInvalidValue, here,
                 "value '{}' is made by no op, or not as it was declared: it cannot be written", value.name);
  }
}

using Position = base::JsonReader::Position;

struct ValueText {
  Position position;
  std::string name, role, type;
  Shape shape;
};

struct OpText {
  Position position;
  std::string op, name;
  std::vector<std::string> reads;
  std::optional<double> epsilon;
};

struct OutputText {
  Position position;
  std::string name;
};

class GraphReader {
 public:
  GraphReader(std::string_view text, const std::string& name, Here here)
      : json_(name, base::JsonReader::from_text(text), here) {}

  Graph read() {
    read_members();
    Graph graph(options_);
    for (const ValueText& value : values_) with_position(value.position, [&] { declare(graph, value); });
    for (const OpText& op : ops_) with_position(op.position, [&] { make(graph, op); });
    for (const OutputText& output : outputs_)
      with_position(output.position, [&] { graph.output(value_of(graph, output.name, output.position), {}); });
    return graph;
  }

 private:
  void read_members();
  ValueText read_value();
  OpText read_op();
  std::string read_string() { return std::string(json_.text()); }

  void declare(Graph& graph, const ValueText& value);
  void make(Graph& graph, const OpText& op);
  Value value_of(const Graph& graph, const std::string& name, Position position) const;

  // Turns an error of the call into a parse error at this position.
  template <class Call>
  void with_position(Position position, const Call& call) const {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == Code::kParse) throw;
      json_.fail_at(position, error.what());
    }
  }

  base::JsonReader json_;
  GraphOptions options_;
  std::vector<ValueText> values_;
  std::vector<OpText> ops_;
  std::vector<OutputText> outputs_;
};

void GraphReader::read_members() {
  bool known = false;
  json_.members([&](std::string_view key) {
    if (key == "format") {
      if (json_.text() != "slip graph") json_.fail("the format is not \"slip graph\"");
      known = true;
    } else if (key == "version") {
      const std::uint64_t version = json_.unsigned_number();
      if (version != 1) json_.fail(fmt::format("version {} of the format, and this program knows 1", version));
    } else if (key == "part_bytes") {
      options_.part_bytes = json_.unsigned_number();
    } else if (key == "join_bytes") {
      options_.join_bytes = json_.unsigned_number();
    } else if (key == "values") {
      json_.items([this] { values_.push_back(read_value()); });
    } else if (key == "ops") {
      json_.items([this] { ops_.push_back(read_op()); });
    } else if (key == "outputs") {
      json_.items([this] { outputs_.push_back({json_.position(), read_string()}); });
    } else {
      json_.fail(
          fmt::format("no member '{}': there are format, version, part_bytes, join_bytes, values, ops, outputs", key));
    }
  });
  json_.finish();
  if (!known) json_.fail("no \"format\": \"slip graph\": this is no graph");
}

ValueText GraphReader::read_value() {
  ValueText value;
  value.position = json_.position();
  json_.members([&](std::string_view key) {
    if (key == "name") value.name = read_string();
    else if (key == "role") value.role = read_string();
    else if (key == "type") value.type = read_string();
    else if (key == "shape") json_.items([&] { value.shape.push_back(json_.unsigned_number()); });
    else json_.fail(fmt::format("no member '{}' of a value: there are name, role, type, shape", key));
  });
  return value;
}

OpText GraphReader::read_op() {
  OpText op;
  op.position = json_.position();
  json_.members([&](std::string_view key) {
    if (key == "op") op.op = read_string();
    else if (key == "name") op.name = read_string();
    else if (key == "epsilon") op.epsilon = json_.real();
    else if (key == "reads") json_.items([&] { op.reads.push_back(read_string()); });
    else json_.fail(fmt::format("no member '{}' of an op: there are op, name, reads, epsilon", key));
  });
  return op;
}

void GraphReader::declare(Graph& graph, const ValueText& value) {
  const std::optional<DataType> type = data_type_of(value.type);
  if (!type) json_.fail_at(value.position, fmt::format("value '{}': no type '{}'", value.name, value.type));
  if (value.role == "input") graph.input(value.name, *type, value.shape, {});
  else if (value.role == "weight") graph.weight(value.name, *type, value.shape, {});
  else if (value.role == "state") graph.state(value.name, *type, value.shape, {});
  else
    json_.fail_at(value.position,
                  fmt::format("value '{}': no role '{}': there are input, weight, state", value.name, value.role));
}

Value GraphReader::value_of(const Graph& graph, const std::string& name, Position position) const {
  const std::optional<Value> found = graph.find(name);
  if (!found) json_.fail_at(position, fmt::format("there is no value '{}' yet", name));
  return *found;
}

void GraphReader::make(Graph& graph, const OpText& op) {
  const std::optional<BuiltIn> kind = built_in_of(op.op);
  if (!kind) json_.fail_at(op.position, fmt::format("op '{}': there is no op called '{}'", op.name, op.op));
  const bool norm = *kind == BuiltIn::kRmsNorm || *kind == BuiltIn::kLayerNorm;
  const bool unary = *kind == BuiltIn::kRelu || *kind == BuiltIn::kGelu || *kind == BuiltIn::kSilu;
  const std::size_t wanted = *kind == BuiltIn::kLayerNorm ? 3 : unary ? 1 : 2;
  if (op.reads.size() != wanted)
    json_.fail_at(op.position,
                  fmt::format("op '{}' reads {} values, and {} takes {}", op.name, op.reads.size(), op.op, wanted));
  if (op.epsilon && !norm) json_.fail_at(op.position, fmt::format("op '{}': {} has no epsilon", op.name, op.op));
  Value reads[3];
  for (std::size_t i = 0; i < wanted; ++i) reads[i] = value_of(graph, op.reads[i], op.position);
  const double epsilon = op.epsilon.value_or(1e-5);
  switch (*kind) {
    case BuiltIn::kLinear: graph.linear(op.name, reads[0], reads[1], {}); break;
    case BuiltIn::kBias: graph.bias(op.name, reads[0], reads[1], {}); break;
    case BuiltIn::kAdd: graph.add(op.name, reads[0], reads[1], {}); break;
    case BuiltIn::kMultiply: graph.multiply(op.name, reads[0], reads[1], {}); break;
    case BuiltIn::kRelu: graph.relu(op.name, reads[0], {}); break;
    case BuiltIn::kGelu: graph.gelu(op.name, reads[0], {}); break;
    case BuiltIn::kSilu: graph.silu(op.name, reads[0], {}); break;
    case BuiltIn::kRmsNorm: graph.rms_norm(op.name, reads[0], reads[1], epsilon, {}); break;
    case BuiltIn::kLayerNorm: graph.layer_norm(op.name, reads[0], reads[1], reads[2], epsilon, {}); break;
  }
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
      base::fail(Code::kInvalidValue, here, "'{}' holds '{}' already: name another folder, or remove this model first",
                 folder, names[0]);
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
  std::string text = fmt::format("{{\"format\": \"slip graph\", \"version\": 1, \"part_bytes\": {}, \"join_bytes\": {}",
                                 graph.options().part_bytes, graph.options().join_bytes);
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

// The reader collects values and ops first, since members may come in any order. Then it calls the functions of Graph,
// as a program would. An error of such a call gets the position in the file.

Graph parse_graph(std::string_view text, const std::string& name, Here here) {
  return GraphReader(text, name, here).read();
}

void require_weights(const Graph& graph, const TensorFiles& tensors, Here here) {
  for (const GraphValue& value : graph.values()) {
    if (value.role != ValueRole::kWeight) continue;
    const TensorInfo& tensor = tensors.at(value.name, here);
    if (tensor.type != value.type || tensor.shape != value.shape)
      base::fail(Code::kInvalidValue, here, "weight '{}' is {} {} in the graph, and {} {} in '{}'", value.name,
                 data_type_name(value.type), shape_text(value.shape), data_type_name(tensor.type),
                 shape_text(tensor.shape), tensors.paths()[tensor.file]);
  }
}

void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards, Here here) {
  const std::string text = graph_text(graph, here);
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) base::fail(Code::kIo, here, "cannot make the folder '{}': {}", folder, failed.message());
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
