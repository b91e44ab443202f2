#include "model/graph_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_text.hpp"
#include "base/output_file.hpp"
#include "model/kernels.hpp"
#include "store/file.hpp"

namespace slip {
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

// A list in JSON, one entry a line.
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
  fmt::format_to(fmt::appender(out), "{{\"op\": \"{}\", \"name\": ", built_in_name(kind));
  append_string(out, graph[op.writes.front().value].name);  // that of a part has a number behind it
  for (std::size_t i = 0; i < op.reads.size(); ++i) {
    out.append(std::string_view(i == 0 ? ", \"reads\": [" : ", "));
    append_string(out, graph[op.reads[i].value].name);
  }
  out.append(std::string_view("]"));
  if (kind == BuiltIn::kRmsNorm || kind == BuiltIn::kLayerNorm)
    fmt::format_to(fmt::appender(out), ", \"epsilon\": {}", op.scalars.at(3).as<double>());
  out.append(std::string_view("}"));
}

[[noreturn]] void refuse(const std::string& op, const char* why, Here here) {
  throw Error(Code::kInvalidValue, fmt::format("op '{}' {}: only graphs of built-in ops can be written", op, why),
              here);
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

// An op that was added by hand with a kernel of the library may be unlike what its name says: then it is not written.
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
      throw Error(
          Code::kInvalidValue,
          fmt::format("value '{}' is made by no op, or not as it was declared: it cannot be written", value.name),
          here);
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
    append_string(out, value.name);
    fmt::format_to(fmt::appender(out), ", \"role\": \"{}\", \"type\": \"{}\", \"shape\": {}}}", role_name(value.role),
                   data_type_name(value.type), shape_text(value.shape));
  }
  values.end();
  append_ops(out, graph, here);
  List outputs(out, "outputs");
  for (const GraphValue& value : graph.values()) {
    if (!value.output) continue;
    outputs.next();
    append_string(out, value.name);
  }
  outputs.end();
  out.append(std::string_view("}\n"));
  std::string text = fmt::to_string(out);
  require_same(graph, parse_graph(text, "graph", here), here);
  return text;
}

void write_graph(const Graph& graph, const std::string& path, Here here) {
  const std::string text = graph_text(graph, here);
  OutputFile file(path, here);
  file.write(text);
  file.finish();
}

Graph read_graph(const std::string& path, Here here) {
  return parse_graph(read_text(path, kMaxGraphBytes, "a graph", here), path, here);
}

}  // namespace slip
