#include "slip/graph.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/fail.hpp"
#include "base/json_text.hpp"
#include "model/kernels.hpp"

namespace slip::model {
namespace {

const std::array<Kernel, kBuiltIns>& kernels() {
  static const std::array<Kernel, kBuiltIns> kAll = {{{"linear", cpu::linear, cuda::linear},
                                                      {"bias", cpu::bias, cuda::bias},
                                                      {"add", cpu::add, cuda::add},
                                                      {"multiply", cpu::multiply, cuda::multiply},
                                                      {"relu", cpu::relu, cuda::relu},
                                                      {"gelu", cpu::gelu, cuda::gelu},
                                                      {"silu", cpu::silu, cuda::silu},
                                                      {"rms_norm", cpu::rms_norm, cuda::rms_norm},
                                                      {"layer_norm", cpu::layer_norm, cuda::layer_norm}}};
  return kAll;
}

template <class Predicate>
std::optional<BuiltIn> find(const Predicate& is_wanted) {
  const auto found = std::ranges::find_if(kernels(), is_wanted);
  if (found == kernels().end()) return std::nullopt;
  return static_cast<BuiltIn>(found - kernels().begin());
}

}  // namespace

std::optional<BuiltIn> built_in_of(std::string_view name) {
  return find([&](const Kernel& kernel) { return kernel.name.text() == name; });
}

std::optional<BuiltIn> built_in_of(const Kernel* kernel) {
  return find([&](const Kernel& one) { return &one == kernel; });
}

const Kernel& kernel_of(BuiltIn op) { return kernels()[static_cast<std::size_t>(op)]; }

}  // namespace slip::model

namespace slip {
namespace {

std::uint32_t next_graph() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only uniqueness counts
}

std::string text_of(const GraphValue& value) {
  return fmt::format("'{}' {} {}", value.name, data_type_name(value.type), shape_text(value.shape));
}

// Throws kInvalidValue if the size of the value is 0, or 2^63 bytes or more.
std::uint64_t bytes_needed(const GraphValue& value, Here here) {
  std::uint64_t bytes = slip::bytes_of(value.type);
  for (const std::uint64_t size : value.shape) {
    if (size == 0) base::fail(ErrorCode::kInvalidValue, here, "value {} has a dimension of 0", text_of(value));
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > std::numeric_limits<std::int64_t>::max())
      base::fail(ErrorCode::kInvalidValue, here, "value {} takes 2^63 bytes or more", text_of(value));
  }
  return bytes;
}

void check_name(const char* what, const std::string& name, Here here) {
  if (name.empty()) base::fail(ErrorCode::kInvalidValue, here, "{} without a name", what);
  if (!base::is_utf8(name)) base::fail(ErrorCode::kInvalidValue, here, "a name of {} that is not UTF-8", what);
}

constexpr std::uint64_t kMaxParts = 65536;  // limit for the parts of a linear: a graph file can request any number

std::uint64_t elements_of(const GraphValue& value) { return value.bytes / bytes_of(value.type); }

// Returns the product, or UINT64_MAX on overflow: flops may overflow although all sizes in bytes fit.
std::uint64_t saturated(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
}

// The rows of each part but the last. Parts are about equally large and at most `part_bytes`, but have at least
// kPartRows rows.
std::uint64_t rows_of_part(std::uint64_t out, std::uint64_t row_bytes, std::uint64_t part_bytes) {
  if (row_bytes * out <= part_bytes) return out;
  const std::uint64_t max_rows =
      std::max<std::uint64_t>(part_bytes / row_bytes / model::kPartRows, 1) * model::kPartRows;
  const std::uint64_t parts = (out + max_rows - 1) / max_rows;
  const std::uint64_t even = (out + parts - 1) / parts;
  return (even + model::kPartRows - 1) / model::kPartRows * model::kPartRows;
}

// The kind and the cost of a built-in op that works row by row.
struct RowOp {
  model::BuiltIn kind = model::BuiltIn::kLinear;
  std::uint64_t flops = 0;  // per element; exp, erf, a division or a root count as one
  double epsilon = 0;
};

void check_epsilon(const std::string& name, double epsilon, Here here) {
  if (!(epsilon >= 0 && std::isfinite(epsilon)))
    base::fail(ErrorCode::kInvalidValue, here, "op '{}': epsilon is {}; it must be finite and not negative", name,
               epsilon);
}

}  // namespace

Graph::Graph(const GraphOptions& options) : id_(next_graph()), options_(options) {}

Value Graph::declare(GraphValue value, Here here) {
  check_name("a value", value.name, here);
  value.bytes = bytes_needed(value, here);
  if (value.bytes > std::numeric_limits<std::int64_t>::max() - total_bytes_)
    base::fail(ErrorCode::kInvalidValue, here, "with value {} the graph takes 2^63 bytes or more", text_of(value));
  const auto index = static_cast<std::uint32_t>(values_.size());
  if (!value_names_.emplace(value.name, index).second)
    base::fail(ErrorCode::kInvalidValue, here, "value {}: the name is taken by {}", text_of(value),
               text_of(values_[value_names_[value.name]]));
  total_bytes_ += value.bytes;
  written_.emplace_back();
  values_.push_back(std::move(value));
  return {index, id_};
}

Value Graph::input(std::string name, DataType type, Shape shape, Here here) {
  return declare({std::move(name), type, std::move(shape), ValueRole::kInput}, here);
}

Value Graph::weight(std::string name, DataType type, Shape shape, Here here) {
  return declare({std::move(name), type, std::move(shape), ValueRole::kWeight}, here);
}

Value Graph::state(std::string name, DataType type, Shape shape, Here here) {
  return declare({std::move(name), type, std::move(shape), ValueRole::kState}, here);
}

Value Graph::activation(std::string name, DataType type, Shape shape, Here here) {
  return declare({std::move(name), type, std::move(shape), ValueRole::kActivation}, here);
}

const GraphValue& Graph::checked(Value value, std::string_view user, Here here) const {
  if (value.index >= values_.size() || (value.graph != 0 && value.graph != id_))
    base::fail(ErrorCode::kInvalidValue, here,
               "{}: value {} is not one of this graph's {} values: it comes from another graph", user, value.index,
               values_.size());
  return values_[value.index];
}

void Graph::output(Value value, Here here) {
  const GraphValue& found = checked(value, "output", here);
  if (found.role != ValueRole::kActivation && found.role != ValueRole::kState)
    base::fail(ErrorCode::kInvalidValue, here, "output {}: an input or a weight belongs to the caller", text_of(found));
  if (!is_written(value, 0, found.bytes))
    base::fail(ErrorCode::kInvalidValue, here, "output {}: no op has written all of it yet", text_of(found));
  values_[value.index].output = true;
}

ValueBytes Graph::all_of(Value value) const { return {value, 0, checked(value, "all_of", Here::at()).bytes}; }

bool Graph::is_written(Value value, std::uint64_t offset, std::uint64_t bytes) const {
  if (values_[value.index].role != ValueRole::kActivation) return true;
  return written_[value.index].contains(offset, offset + bytes);
}

bool Graph::WrittenBytes::contains(std::uint64_t from, std::uint64_t to) const {
  return std::ranges::any_of(spans_, [&](const Span& span) { return span.from <= from && to <= span.to; });
}

void Graph::WrittenBytes::add(std::uint64_t from, std::uint64_t to) {
  Span joined{from, to};
  const auto touches = [&](const Span& span) { return span.from <= joined.to && joined.from <= span.to; };
  const auto first = std::find_if(spans_.begin(), spans_.end(), touches);
  auto last = first;
  for (; last != spans_.end() && touches(*last); ++last)
    joined = {std::min(joined.from, last->from), std::max(joined.to, last->to)};
  spans_.erase(first, last);
  spans_.insert(std::ranges::upper_bound(spans_, joined.from, {}, &Span::from), joined);
}

void Graph::check_bytes(const GraphOp& op, const ValueBytes& bytes, bool write, Here here) const {
  const GraphValue& value = checked(bytes.value, fmt::format("op '{}'", op.name), here);
  const auto refuse = [&](const std::string& why) {
    base::fail(ErrorCode::kInvalidValue, here, "op '{}' {} bytes {} to {} of {}: {}", op.name,
               write ? "writes" : "reads", bytes.offset, bytes.offset + bytes.bytes, text_of(value), why);
  };
  if (bytes.bytes == 0) refuse("this range is empty");
  if (bytes.offset > value.bytes || bytes.bytes > value.bytes - bytes.offset)
    refuse(fmt::format("it has {}", value.bytes));
  if (write && value.role == ValueRole::kInput) refuse("inputs are given by the caller and never written");
  if (write && value.role == ValueRole::kWeight) refuse("weights are never written");
  if (!write && !is_written(bytes.value, bytes.offset, bytes.bytes)) refuse("no earlier op has written all of them");
}

void Graph::add_op(GraphOp op, Here here) {
  check_name("an op", op.name, here);
  if (!op.kernel) base::fail(ErrorCode::kInvalidValue, here, "op '{}' has no kernel", op.name);
  if (op_names_.contains(op.name))
    base::fail(ErrorCode::kInvalidValue, here, "op '{}': the name is taken by an earlier op", op.name);
  for (const ValueBytes& bytes : op.reads) check_bytes(op, bytes, false, here);
  for (const ValueBytes& bytes : op.writes) check_bytes(op, bytes, true, here);
  for (const ValueBytes& bytes : op.writes) written_[bytes.value.index].add(bytes.offset, bytes.offset + bytes.bytes);
  op_names_.insert(op.name);
  ops_.push_back(std::move(op));
}

std::optional<Value> Graph::find(std::string_view name) const {
  const auto found = value_names_.find(name);
  if (found == value_names_.end()) return std::nullopt;
  return Value{found->second, id_};
}

std::uint64_t Graph::bytes_of(ValueRole role) const {
  std::uint64_t bytes = 0;
  for (const GraphValue& value : values_) bytes += value.role == role ? value.bytes : 0;
  return bytes;
}

// The built-in ops of a Graph: their checks, results and costs. All checks come before the first change, so that a call
// that throws leaves the graph as it was.

// One call of a built-in op. The constructor checks its name; the caller then checks its values and adds it.
class Graph::NewOp {
 public:
  NewOp(Graph& graph, std::string name, Here here) : graph_(graph), name_(std::move(name)), here_(here) {
    check_free(name_);
  }

  void check_free(const std::string& name) const {
    if (graph_.op_names_.contains(name))
      base::fail(ErrorCode::kInvalidValue, here_, "op '{}': the name is taken by an earlier op", name);
  }

  // Checks x of a built-in op: it has a type that kernels support and at least one dimension, and an op has written it.
  const GraphValue& check_rows(Value x) const {
    const GraphValue& value = graph_.checked(x, fmt::format("op '{}'", name_), here_);
    const auto refuse = [&](const char* why) {
      base::fail(ErrorCode::kInvalidValue, here_, "op '{}' reads {}: {}", name_, text_of(value), why);
    };
    if (value.type != DataType::kF32 && value.type != DataType::kBF16) refuse("built-in ops take F32 and BF16");
    if (value.shape.empty()) refuse("it has no dimension");
    if (!graph_.is_written(x, 0, value.bytes)) refuse("no earlier op has written all of it");
    return value;
  }

  // Checks that `other` has the type of x and this shape.
  void check_like(Value x, Value other, const Shape& shape) const {
    const GraphValue& like = graph_.values_[x.index];
    const GraphValue& value = check_rows(other);
    if (value.type != like.type)
      base::fail(ErrorCode::kInvalidValue, here_, "op '{}': the types of {} and {} differ; it takes one type", name_,
                 text_of(like), text_of(value));
    if (value.shape != shape)
      base::fail(ErrorCode::kInvalidValue, here_, "op '{}': with {} it takes {}, not {}", name_, text_of(like),
                 shape_text(shape), text_of(value));
  }

  // The result has the type and shape of reads[0].
  Value add_row_op(const RowOp& op, std::initializer_list<Value> reads) const {
    const GraphValue x = graph_.values_[reads.begin()->index];
    const std::uint64_t columns = x.shape.back(), elements = elements_of(x);
    const model::RowSizes sizes{x.type, elements / columns, columns, op.epsilon};
    GraphOp made{.name = name_, .kernel = &model::kernel_of(op.kind), .scalars = sizes.scalars()};
    made.cost = {.bytes = x.bytes, .flops = saturated(op.flops, elements)};
    for (const Value value : reads) {
      made.reads.push_back(graph_.all_of(value));
      made.cost.bytes += made.reads.back().bytes;
    }
    const Value y = graph_.declare({name_, x.type, x.shape, ValueRole::kActivation}, here_);
    made.writes = {graph_.all_of(y)};
    graph_.add_op(std::move(made), here_);
    return y;
  }

  Value add_unary(const RowOp& op, Value x) const {
    check_rows(x);
    return add_row_op(op, {x});
  }

  Value add_alike(const RowOp& op, Value a, Value b) const {
    const GraphValue& first = check_rows(a);
    check_like(a, b, first.shape);
    if (first.role == ValueRole::kWeight && graph_.values_[b.index].role == ValueRole::kWeight)
      base::fail(ErrorCode::kInvalidValue, here_,
                 "op '{}': {} and {} are both weights, so its result never changes; store the result as a weight",
                 name_, text_of(first), text_of(graph_.values_[b.index]));
    return add_row_op(op, {a, b});
  }

 private:
  Graph& graph_;
  const std::string name_;
  const Here here_;
};

Value Graph::linear(std::string name, Value x, Value weight, Here here) {
  const NewOp op(*this, name, here);
  // A copy, since declare() below moves the values. NOLINTNEXTLINE(performance-unnecessary-copy-initialization)
  const GraphValue from = op.check_rows(x);
  const GraphValue& rows = op.check_rows(weight);
  const std::uint64_t in = from.shape.back();
  if (rows.shape.size() != 2)
    base::fail(ErrorCode::kInvalidValue, here, "op '{}': a weight is [out, in], and {} has {} dimensions", name,
               text_of(rows), rows.shape.size());
  const std::uint64_t out = rows.shape[0];
  op.check_like(x, weight, {out, in});

  Shape shape = from.shape;
  shape.back() = out;
  const std::uint64_t tokens = elements_of(from) / in, element = slip::bytes_of(from.type), row_bytes = in * element;
  const std::uint64_t part = rows_of_part(out, row_bytes, options_.part_bytes);
  if (out / part >= kMaxParts)
    base::fail(ErrorCode::kInvalidValue, here,
               "op '{}': {} in parts of {} rows are more than {} ops; give GraphOptions more part_bytes than {}", name,
               text_of(rows), part, kMaxParts, options_.part_bytes);
  const auto part_name = [&](std::uint64_t first) {
    return part >= out ? name : fmt::format("{}.{}", name, first / part);
  };
  for (std::uint64_t first = 0; first < out; first += part) op.check_free(part_name(first));
  const Value y = declare({name, from.type, std::move(shape), ValueRole::kActivation}, here);
  for (std::uint64_t first = 0; first < out; first += part) {
    const model::LinearSizes sizes{from.type, tokens, in, out, first, std::min(part, out - first)};
    add_op({.name = part_name(first),
            .kernel = &model::kernel_of(model::BuiltIn::kLinear),
            .reads = {all_of(x), {weight, first * row_bytes, sizes.rows * row_bytes}},
            .writes = {all_of(y)},
            .scalars = sizes.scalars(),
            .cost = {.bytes = from.bytes + sizes.rows * (row_bytes + tokens * element),
                     .flops = saturated(2 * tokens * in, sizes.rows)}},
           here);
  }
  return y;
}

Value Graph::add(std::string name, Value a, Value b, Here here) {
  return NewOp(*this, std::move(name), here).add_alike({model::BuiltIn::kAdd, 1}, a, b);
}

Value Graph::multiply(std::string name, Value a, Value b, Here here) {
  return NewOp(*this, std::move(name), here).add_alike({model::BuiltIn::kMultiply, 1}, a, b);
}

Value Graph::bias(std::string name, Value x, Value weight, Here here) {
  const NewOp op(*this, std::move(name), here);
  op.check_like(x, weight, {op.check_rows(x).shape.back()});
  return op.add_row_op({model::BuiltIn::kBias, 1}, {x, weight});
}

Value Graph::relu(std::string name, Value x, Here here) {
  return NewOp(*this, std::move(name), here).add_unary({model::BuiltIn::kRelu, 1}, x);
}

Value Graph::gelu(std::string name, Value x, Here here) {
  return NewOp(*this, std::move(name), here).add_unary({model::BuiltIn::kGelu, 5}, x);
}

Value Graph::silu(std::string name, Value x, Here here) {
  return NewOp(*this, std::move(name), here).add_unary({model::BuiltIn::kSilu, 4}, x);
}

Value Graph::rms_norm(std::string name, Value x, Value weight, double epsilon, Here here) {
  const NewOp op(*this, name, here);
  check_epsilon(name, epsilon, here);
  op.check_like(x, weight, {op.check_rows(x).shape.back()});
  return op.add_row_op({model::BuiltIn::kRmsNorm, 4, epsilon}, {x, weight});
}

Value Graph::layer_norm(std::string name, Value x, Value weight, Value bias, double epsilon, Here here) {
  const NewOp op(*this, name, here);
  check_epsilon(name, epsilon, here);
  const Shape columns = {op.check_rows(x).shape.back()};
  op.check_like(x, weight, columns);
  op.check_like(x, bias, columns);
  return op.add_row_op({model::BuiltIn::kLayerNorm, 8, epsilon}, {x, weight, bias});
}

}  // namespace slip
