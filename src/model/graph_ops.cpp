// The built-in ops of a Graph: their checks, results and costs. All checks come before the first change, so that a call
// that throws leaves the graph as it was.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "model/kernels.hpp"
#include "slip/graph.hpp"

namespace slip {

struct Graph::RowOp {
  BuiltIn kind = BuiltIn::kLinear;
  std::uint64_t flops = 0;  // per element; exp, erf, a division or a square root count as one
  double epsilon = 0;
};

namespace {

constexpr std::uint64_t kMaxParts = 65536;  // of a linear; protects against absurd part_bytes in a file

std::string told(const GraphValue& value) {
  return fmt::format("'{}' {} {}", value.name, data_type_name(value.type), shape_text(value.shape));
}

std::uint64_t elements_of(const GraphValue& value) { return value.bytes / bytes_of(value.type); }

// The product, or UINT64_MAX on overflow: sizes that fit may overflow as flops.
std::uint64_t saturated(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? ~std::uint64_t{0} : product;
}

// The rows of each part but the last. Parts are about equally large and at most `part_bytes`, but have at least
// kPartRows rows.
std::uint64_t rows_of_part(std::uint64_t out, std::uint64_t row_bytes, std::uint64_t part_bytes) {
  if (row_bytes * out <= part_bytes) return out;
  const std::uint64_t most = std::max<std::uint64_t>(part_bytes / row_bytes / kPartRows, 1) * kPartRows;
  const std::uint64_t parts = (out + most - 1) / most;
  const std::uint64_t even = (out + parts - 1) / parts;
  return (even + kPartRows - 1) / kPartRows * kPartRows;
}

}  // namespace

void Graph::check_new_op(const std::string& name, Here here) const {
  if (op_names_.contains(name))
    throw Error(Code::kInvalidValue, fmt::format("op '{}': the name is taken by an earlier op", name), here);
}

// Checks x of a built-in op: its type has a kernel, it has a last dimension, and it is written.
const GraphValue& Graph::check_rows(const std::string& name, Value x, Here here) const {
  const GraphValue& value = checked(x, fmt::format("op '{}'", name), here);
  const auto refuse = [&](const char* why) {
    throw Error(Code::kInvalidValue, fmt::format("op '{}' reads {}: {}", name, told(value), why), here);
  };
  if (value.type != DataType::kF32 && value.type != DataType::kBF16) refuse("built-in ops take F32 and BF16");
  if (value.shape.empty()) refuse("it has no dimension");
  if (!is_written(x, 0, value.bytes)) refuse("no earlier op has written all of it");
  return value;
}

// Checks that `other` has the type of x and this shape.
void Graph::check_like(const std::string& name, Value x, Value other, const Shape& shape, Here here) const {
  const GraphValue& like = values_[x.index];
  const GraphValue& value = check_rows(name, other, here);
  if (value.type != like.type)
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}': the types of {} and {} differ; it takes one type", name, told(like), told(value)),
                here);
  if (value.shape != shape)
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}': with {} it takes {}, not {}", name, told(like), shape_text(shape), told(value)),
                here);
}

Value Graph::linear(std::string name, Value x, Value weight, Here here) {
  check_new_op(name, here);
  const GraphValue from = check_rows(name, x, here);
  const GraphValue rows = check_rows(name, weight, here);
  const std::uint64_t in = from.shape.back();
  if (rows.shape.size() != 2)
    throw Error(
        Code::kInvalidValue,
        fmt::format("op '{}': a weight is [out, in], and {} has {} dimensions", name, told(rows), rows.shape.size()),
        here);
  const std::uint64_t out = rows.shape[0];
  check_like(name, x, weight, {out, in}, here);

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
  for (std::uint64_t first = 0; first < out; first += part) check_new_op(part_name(first), here);
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

Value Graph::add_row_op(std::string name, const RowOp& op, std::span<const Value> reads, Here here) {
  const GraphValue x = values_[reads.front().index];
  const std::uint64_t columns = x.shape.back(), elements = elements_of(x);
  const RowSizes sizes{x.type, elements / columns, columns, op.epsilon};
  GraphOp made{.name = name, .kernel = &kernel_of(op.kind), .scalars = sizes.scalars()};
  made.cost = {.bytes = x.bytes, .flops = saturated(op.flops, elements)};
  for (const Value value : reads) {
    made.reads.push_back(all_of(value));
    made.cost.bytes += made.reads.back().bytes;
  }
  const Value y = declare({std::move(name), x.type, x.shape, ValueRole::kActivation}, here);
  made.writes = {all_of(y)};
  add_op(std::move(made), here);
  return y;
}

Value Graph::add_alike(std::string name, const RowOp& op, Value a, Value b, Here here) {
  check_new_op(name, here);
  const GraphValue& first = check_rows(name, a, here);
  check_like(name, a, b, first.shape, here);
  if (first.role == ValueRole::kWeight && values_[b.index].role == ValueRole::kWeight)
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}': {} and {} are both weights, so its result never changes; store that instead",
                            name, told(first), told(values_[b.index])),
                here);
  const Value reads[] = {a, b};
  return add_row_op(std::move(name), op, reads, here);
}

Value Graph::add(std::string name, Value a, Value b, Here here) {
  return add_alike(std::move(name), {BuiltIn::kAdd, 1}, a, b, here);
}

Value Graph::multiply(std::string name, Value a, Value b, Here here) {
  return add_alike(std::move(name), {BuiltIn::kMultiply, 1}, a, b, here);
}

Value Graph::bias(std::string name, Value x, Value weight, Here here) {
  check_new_op(name, here);
  check_like(name, x, weight, {check_rows(name, x, here).shape.back()}, here);
  const Value reads[] = {x, weight};
  return add_row_op(std::move(name), {BuiltIn::kBias, 1}, reads, here);
}

Value Graph::relu(std::string name, Value x, Here here) {
  check_new_op(name, here);
  check_rows(name, x, here);
  return add_row_op(std::move(name), {BuiltIn::kRelu, 1}, {&x, 1}, here);
}

Value Graph::gelu(std::string name, Value x, Here here) {
  check_new_op(name, here);
  check_rows(name, x, here);
  return add_row_op(std::move(name), {BuiltIn::kGelu, 5}, {&x, 1}, here);
}

Value Graph::silu(std::string name, Value x, Here here) {
  check_new_op(name, here);
  check_rows(name, x, here);
  return add_row_op(std::move(name), {BuiltIn::kSilu, 4}, {&x, 1}, here);
}

namespace {

void check_epsilon(const std::string& name, double epsilon, Here here) {
  if (!(epsilon >= 0 && std::isfinite(epsilon)))
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}': epsilon is {}; it must be 0 or a little more", name, epsilon), here);
}

}  // namespace

Value Graph::rms_norm(std::string name, Value x, Value weight, double epsilon, Here here) {
  check_new_op(name, here);
  check_epsilon(name, epsilon, here);
  check_like(name, x, weight, {check_rows(name, x, here).shape.back()}, here);
  const Value reads[] = {x, weight};
  return add_row_op(std::move(name), {BuiltIn::kRmsNorm, 4, epsilon}, reads, here);
}

Value Graph::layer_norm(std::string name, Value x, Value weight, Value bias, double epsilon, Here here) {
  check_new_op(name, here);
  check_epsilon(name, epsilon, here);
  const Shape columns = {check_rows(name, x, here).shape.back()};
  check_like(name, x, weight, columns, here);
  check_like(name, x, bias, columns, here);
  const Value reads[] = {x, weight, bias};
  return add_row_op(std::move(name), {BuiltIn::kLayerNorm, 8, epsilon}, reads, here);
}

}  // namespace slip
