// Reads the text of a graph. Values and ops are collected first, since members may come in any order, and then made by
// the same calls that a program makes: what those refuse is told with the place in the file.
#include <fmt/format.h>

#include "base/json_reader.hpp"
#include "model/graph_file.hpp"
#include "model/kernels.hpp"

namespace slip {
namespace {

using Place = JsonReader::Position;

struct ValueText {
  Place place;
  std::string name, role, type;
  Shape shape;
};

struct OpText {
  Place place;
  std::string op, name;
  std::vector<std::string> reads;
  std::optional<double> epsilon;
};

struct OutputText {
  Place place;
  std::string name;
};

class GraphReader {
 public:
  GraphReader(std::string_view text, const std::string& name, Here here)
      : json_(name, JsonReader::from_text(text), here) {}

  Graph read() {
    read_members();
    Graph graph(options_);
    for (const ValueText& value : values_) told_with(value.place, [&] { declare(graph, value); });
    for (const OpText& op : ops_) told_with(op.place, [&] { make(graph, op); });
    for (const OutputText& output : outputs_)
      told_with(output.place, [&] { graph.output(value_of(graph, output.name, output.place), {}); });
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
  Value value_of(const Graph& graph, const std::string& name, Place place) const;

  // What a call refuses, as an error of the file.
  template <class Call>
  void told_with(Place place, const Call& call) const {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == Code::kParse) throw;
      json_.fail_at(place, error.what());
    }
  }

  JsonReader json_;
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
  value.place = json_.position();
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
  op.place = json_.position();
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
  if (!type) json_.fail_at(value.place, fmt::format("value '{}': no type '{}'", value.name, value.type));
  if (value.role == "input") graph.input(value.name, *type, value.shape, {});
  else if (value.role == "weight") graph.weight(value.name, *type, value.shape, {});
  else if (value.role == "state") graph.state(value.name, *type, value.shape, {});
  else
    json_.fail_at(value.place,
                  fmt::format("value '{}': no role '{}': there are input, weight, state", value.name, value.role));
}

Value GraphReader::value_of(const Graph& graph, const std::string& name, Place place) const {
  const std::optional<Value> found = graph.find(name);
  if (!found) json_.fail_at(place, fmt::format("there is no value '{}' yet", name));
  return *found;
}

void GraphReader::make(Graph& graph, const OpText& op) {
  const std::optional<BuiltIn> kind = built_in_of(op.op);
  if (!kind) json_.fail_at(op.place, fmt::format("op '{}': there is no op called '{}'", op.name, op.op));
  const bool norm = *kind == BuiltIn::kRmsNorm || *kind == BuiltIn::kLayerNorm;
  const bool unary = *kind == BuiltIn::kRelu || *kind == BuiltIn::kGelu || *kind == BuiltIn::kSilu;
  const std::size_t wanted = *kind == BuiltIn::kLayerNorm ? 3 : unary ? 1 : 2;
  if (op.reads.size() != wanted)
    json_.fail_at(op.place,
                  fmt::format("op '{}' reads {} values, and {} takes {}", op.name, op.reads.size(), op.op, wanted));
  if (op.epsilon && !norm) json_.fail_at(op.place, fmt::format("op '{}': {} has no epsilon", op.name, op.op));
  Value reads[3];
  for (std::size_t i = 0; i < wanted; ++i) reads[i] = value_of(graph, op.reads[i], op.place);
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

}  // namespace slip
