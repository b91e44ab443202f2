// The built-in ops of a Graph: what fits together, what they make and what they cost. All checks come before the first
// change, so that a call that throws leaves the graph as it was.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/kernels.hpp"
#include "slip/graph.hpp"

namespace slip {

namespace {

constexpr std::uint64_t kMaxParts = 65536;  // of a linear; a file could ask for as many as there are atoms

std::string told(const GraphValue& value) {
  return fmt::format("'{}' {} {}", value.name, data_type_name(value.type), shape_text(value.shape));
}

std::uint64_t elements_of(const GraphValue& value) { return value.bytes / bytes_of(value.type); }

// The product, or the greatest number there is: sizes that fit alone may not as flops.
std::uint64_t saturated(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
}

// Rows of each part but the last: parts about as large as each other, none beyond `part_bytes` unless it is the least.
std::uint64_t rows_of_part(std::uint64_t out, std::uint64_t row_bytes, std::uint64_t part_bytes) {
  if (row_bytes * out <= part_bytes) return out;
  const std::uint64_t most = std::max<std::uint64_t>(part_bytes / row_bytes / kPartRows, 1) * kPartRows;
  const std::uint64_t parts = (out + most - 1) / most;
  const std::uint64_t even = (out + parts - 1) / parts;
  return (even + kPartRows - 1) / kPartRows * kPartRows;
}

// What a built-in op does to each row.
struct RowOp {
  BuiltIn kind = BuiltIn::kLinear;
  std::uint64_t flops = 0;  // per element; exp, erf, a division or a root count as one
  double epsilon = 0;
};

}  // namespace

// One call of a built-in op. The constructor checks its name; the caller then checks its values and adds it.
class Graph::NewOp {
 public:
  NewOp(Graph& graph, std::string name, Here here) : graph_(graph), name_(std::move(name)), here_(here) {
    check_free(name_);
  }

  void check_free(const std::string& name) const {
    if (graph_.op_names_.contains(name))
      throw Error(Code::kInvalidValue, fmt::format("op '{}': the name is taken by an earlier op", name), here_);
  }

  // x of a built-in op: it has a type that kernels support and at least one dimension, and is written.
  const GraphValue& check_rows(Value x) const {
    const GraphValue& value = graph_.checked(x, fmt::format("op '{}'", name_), here_);
    const auto refuse = [&](const char* why) {
      throw Error(Code::kInvalidValue, fmt::format("op '{}' reads {}: {}", name_, told(value), why), here_);
    };
    if (value.type != DataType::kF32 && value.type != DataType::kBF16) refuse("built-in ops take F32 and BF16");
    if (value.shape.empty()) refuse("it has no dimension");
    if (!graph_.is_written(x, 0, value.bytes)) refuse("no earlier op has written all of it");
    return value;
  }

  // `other` has the type of x and this shape.
  void check_like(Value x, Value other, const Shape& shape) const {
    const GraphValue& like = graph_.values_[x.index];
    const GraphValue& value = check_rows(other);
    if (value.type != like.type)
      throw Error(
          Code::kInvalidValue,
          fmt::format("op '{}': the types of {} and {} differ; it takes one type", name_, told(like), told(value)),
          here_);
    if (value.shape != shape)
      throw Error(
          Code::kInvalidValue,
          fmt::format("op '{}': with {} it takes {}, not {}", name_, told(like), shape_text(shape), told(value)),
          here_);
  }

  // The result has the type and shape of reads[0].
  Value add_row_op(const RowOp& op, std::span<const Value> reads) const {
    const GraphValue x = graph_.values_[reads.front().index];
    const std::uint64_t columns = x.shape.back(), elements = elements_of(x);
    const RowSizes sizes{x.type, elements / columns, columns, op.epsilon};
    GraphOp made{.name = name_, .kernel = &kernel_of(op.kind), .scalars = sizes.scalars()};
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

  Value add_alike(const RowOp& op, Value a, Value b) const {
    const GraphValue& first = check_rows(a);
    check_like(a, b, first.shape);
    if (first.role == ValueRole::kWeight && graph_.values_[b.index].role == ValueRole::kWeight)
      throw Error(Code::kInvalidValue,
                  fmt::format("op '{}': {} and {} are both weights, so its result never changes; store that instead",
                              name_, told(first), told(graph_.values_[b.index])),
                  here_);
    const Value reads[] = {a, b};
    return add_row_op(op, reads);
  }

 private:
  Graph& graph_;
  const std::string name_;
  const Here here_;
};

Value Graph::linear(std::string name, Value x, Value weight, Here here) {
  const NewOp op(*this, name, here);
  const GraphValue from = op.check_rows(x);
  const GraphValue rows = op.check_rows(weight);
  const std::uint64_t in = from.shape.back();
  if (rows.shape.size() != 2)
    throw Error(
        Code::kInvalidValue,
        fmt::format("op '{}': a weight is [out, in], and {} has {} dimensions", name, told(rows), rows.shape.size()),
        here);
  const std::uint64_t out = rows.shape[0];
  op.check_like(x, weight, {out, in});

  Shape shape = from.shape;
  shape.back() = out;
  const std::uint64_t tokens = elements_of(from) / in, element = slip::bytes_of(from.type), row_bytes = in * element;
  const std::uint64_t part = rows_of_part(out, row_bytes, options_.part_bytes);
  if (out / part >= kMaxParts)
    throw Error(
        Code::kInvalidValue,
        fmt::format("op '{}': {} in parts of {} rows are more than {} ops; give GraphOptions more part_bytes than {}",
                    name, told(rows), part, kMaxParts, options_.part_bytes),
        here);
  const auto part_name = [&](std::uint64_t first) {
    return part >= out ? name : fmt::format("{}.{}", name, first / part);
  };
  for (std::uint64_t first = 0; first < out; first += part) op.check_free(part_name(first));
  const Value y = declare({name, from.type, std::move(shape), ValueRole::kActivation}, here);
  for (std::uint64_t first = 0; first < out; first += part) {
    const LinearSizes sizes{from.type, tokens, in, out, first, std::min(part, out - first)};
    add_op({.name = part_name(first),
            .kernel = &kernel_of(BuiltIn::kLinear),
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
  return NewOp(*this, std::move(name), here).add_alike({BuiltIn::kAdd, 1}, a, b);
}

Value Graph::multiply(std::string name, Value a, Value b, Here here) {
  return NewOp(*this, std::move(name), here).add_alike({BuiltIn::kMultiply, 1}, a, b);
}

Value Graph::bias(std::string name, Value x, Value weight, Here here) {
  const NewOp op(*this, std::move(name), here);
  op.check_like(x, weight, {op.check_rows(x).shape.back()});
  const Value reads[] = {x, weight};
  return op.add_row_op({BuiltIn::kBias, 1}, reads);
}

Value Graph::relu(std::string name, Value x, Here here) {
  const NewOp op(*this, std::move(name), here);
  op.check_rows(x);
  return op.add_row_op({BuiltIn::kRelu, 1}, {&x, 1});
}

Value Graph::gelu(std::string name, Value x, Here here) {
  const NewOp op(*this, std::move(name), here);
  op.check_rows(x);
  return op.add_row_op({BuiltIn::kGelu, 5}, {&x, 1});
}

Value Graph::silu(std::string name, Value x, Here here) {
  const NewOp op(*this, std::move(name), here);
  op.check_rows(x);
  return op.add_row_op({BuiltIn::kSilu, 4}, {&x, 1});
}

namespace {

void check_epsilon(const std::string& name, double epsilon, Here here) {
  if (!(epsilon >= 0 && std::isfinite(epsilon)))
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}': epsilon is {}; it must be 0 or a little more", name, epsilon), here);
}

}  // namespace

Value Graph::rms_norm(std::string name, Value x, Value weight, double epsilon, Here here) {
  const NewOp op(*this, name, here);
  check_epsilon(name, epsilon, here);
  op.check_like(x, weight, {op.check_rows(x).shape.back()});
  const Value reads[] = {x, weight};
  return op.add_row_op({BuiltIn::kRmsNorm, 4, epsilon}, reads);
}

Value Graph::layer_norm(std::string name, Value x, Value weight, Value bias, double epsilon, Here here) {
  const NewOp op(*this, name, here);
  check_epsilon(name, epsilon, here);
  const Shape columns = {op.check_rows(x).shape.back()};
  op.check_like(x, weight, columns);
  op.check_like(x, bias, columns);
  const Value reads[] = {x, weight, bias};
  return op.add_row_op({BuiltIn::kLayerNorm, 8, epsilon}, reads);
}

}  // namespace slip
