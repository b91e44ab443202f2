#include "model/graph_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/fail.hpp"
#include "base/json_reader.hpp"
#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/kernels.hpp"
#include "store/file.hpp"

namespace slip::model {
namespace {

constexpr std::uint64_t kMaxGraphBytes = 256'000'000;

const char* role_name(ValueRole role) {
  switch (role) {
    case ValueRole::kInput: return "input";
    case ValueRole::kWeight: return "weight";
    case ValueRole::kState: return "state";
    case ValueRole::kActivation: break;
  }
  return "activation";
}

// A JSON array with one entry per line.
class List {
 public:
  List(fmt::memory_buffer& out, const char* name) : out_(out) {
    fmt::format_to(fmt::appender(out_), ",\n\"{}\": [", name);
  }
  void next() {
    out_.append(std::string_view(first_ ? "\n " : ",\n "));
    first_ = false;
  }
  void end() { out_.append(std::string_view("]")); }

 private:
  fmt::memory_buffer& out_;
  bool first_ = true;
};

void append_op(fmt::memory_buffer& out, const Graph& graph, const GraphOp& op, BuiltIn kind) {
  fmt::format_to(fmt::appender(out), "{{\"op\": \"{}\", \"name\": ", kernel_of(kind).name.text());
  // Not op.name: a part of a linear has a number appended.
  base::append_string(out, graph[op.writes.front().value].name);
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    out.append(std::string_view(i == 0 ? ", \"reads\": [" : ", "));
    base::append_string(out, graph[op.reads[i].value].name);
  }
  out.append(std::string_view("]"));
  if (kind == BuiltIn::kRmsNorm || kind == BuiltIn::kLayerNorm)
    fmt::format_to(fmt::appender(out), ", \"epsilon\": {}", op.scalars.at(3).as<double>());
  out.append(std::string_view("}"));
}

[[noreturn]] void refuse(const std::string& op, const char* why, Here here) {
  base::fail(Code::kInvalidValue, here, "op '{}' {}: only graphs of built-in ops can be written", op, why);
}

void append_ops(fmt::memory_buffer& out, const Graph& graph, Here here) {
  List list(out, "ops");
  const GraphOp* before = nullptr;
  for (const GraphOp& op : graph.ops()) {
    const std::optional<BuiltIn> kind = built_in_of(op.kernel);
    if (!kind || op.writes.size() != 1) refuse(op.name, "is none of the library's", here);
    const bool part = before && before->kernel == op.kernel && before->writes.front().value == op.writes.front().value;
    before = &op;
    if (part) continue;
    list.next();
    append_op(out, graph, op, *kind);
  }
  list.end();
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

}  // namespace

std::string graph_text(const Graph& graph, Here here) {
  fmt::memory_buffer out;
  fmt::format_to(fmt::appender(out),
                 "{{\"format\": \"slip graph\", \"version\": 1, \"part_bytes\": {}, \"join_bytes\": {}",
                 graph.options().part_bytes, graph.options().join_bytes);
  List values(out, "values");
  for (const GraphValue& value : graph.values()) {
    if (value.role == ValueRole::kActivation) continue;
    values.next();
    out.append(std::string_view("{\"name\": "));
    base::append_string(out, value.name);
    fmt::format_to(fmt::appender(out), ", \"role\": \"{}\", \"type\": \"{}\", \"shape\": {}}}", role_name(value.role),
                   data_type_name(value.type), shape_text(value.shape));
  }
  values.end();
  append_ops(out, graph, here);
  List outputs(out, "outputs");
  for (const GraphValue& value : graph.values()) {
    if (!value.output) continue;
    outputs.next();
    base::append_string(out, value.name);
  }
  outputs.end();
  out.append(std::string_view("}\n"));
  std::string text = fmt::to_string(out);
  require_same(graph, parse_graph(text, "graph", here), here);
  return text;
}

// The reader collects values and ops first, since members may come in any order. Then it calls the functions of Graph,
// as a program would. An error of such a call gets the position in the file.

namespace {

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
  template <class Entry>
  void read_list(std::vector<Entry>& into, const std::function<Entry()>& read);
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

template <class Entry>
void GraphReader::read_list(std::vector<Entry>& into, const std::function<Entry()>& read) {
  json_.begin_array();
  while (json_.next_item()) into.push_back(read());
}

void GraphReader::read_members() {
  bool known = false;
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
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
      read_list<ValueText>(values_, [this] { return read_value(); });
    } else if (key == "ops") {
      read_list<OpText>(ops_, [this] { return read_op(); });
    } else if (key == "outputs") {
      read_list<OutputText>(outputs_, [this] { return OutputText{json_.position(), read_string()}; });
    } else {
      json_.fail(
          fmt::format("no member '{}': there are format, version, part_bytes, join_bytes, values, ops, outputs", key));
    }
  }
  json_.finish();
  if (!known) json_.fail("no \"format\": \"slip graph\": this is no graph");
}

ValueText GraphReader::read_value() {
  ValueText value;
  value.position = json_.position();
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "name") value.name = read_string();
    else if (key == "role") value.role = read_string();
    else if (key == "type") value.type = read_string();
    else if (key == "shape") read_list<std::uint64_t>(value.shape, [this] { return json_.unsigned_number(); });
    else json_.fail(fmt::format("no member '{}' of a value: there are name, role, type, shape", key));
  }
  return value;
}

OpText GraphReader::read_op() {
  OpText op;
  op.position = json_.position();
  std::string_view key;
  json_.begin_object();
  while (json_.next_key(key)) {
    if (key == "op") op.op = read_string();
    else if (key == "name") op.name = read_string();
    else if (key == "epsilon") op.epsilon = json_.real();
    else if (key == "reads") read_list<std::string>(op.reads, [this] { return read_string(); });
    else json_.fail(fmt::format("no member '{}' of an op: there are op, name, reads, epsilon", key));
  }
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

}  // namespace

Graph parse_graph(std::string_view text, const std::string& name, Here here) {
  return GraphReader(text, name, here).read();
}

}  // namespace slip::model

namespace slip {
using namespace model;

void write_graph(const Graph& graph, const std::string& path, Here here) {
  const std::string text = graph_text(graph, here);
  base::OutputFile file(path, here);
  file.write(text);
  file.finish();
}

Graph read_graph(const std::string& path, Here here) {
  return parse_graph(store::read_text(path, kMaxGraphBytes, "a graph", here), path, here);
}

}  // namespace slip
