#include "slip/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "base/json_text.hpp"

namespace slip {
namespace {

std::uint32_t next_graph() {
  static std::atomic<std::uint32_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;  // relaxed: only uniqueness counts
}

std::string told(const GraphValue& value) {
  return fmt::format("'{}' {} {}", value.name, data_type_name(value.type), shape_text(value.shape));
}

// kInvalidValue unless the shape can be counted in bytes.
std::uint64_t bytes_needed(const GraphValue& value, Here here) {
  std::uint64_t bytes = slip::bytes_of(value.type);
  for (const std::uint64_t size : value.shape) {
    if (size == 0) throw Error(Code::kInvalidValue, fmt::format("value {} has a dimension of 0", told(value)), here);
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > std::numeric_limits<std::int64_t>::max())
      throw Error(Code::kInvalidValue, fmt::format("value {} takes more than 2^63 bytes", told(value)), here);
  }
  return bytes;
}

void check_name(const char* what, const std::string& name, Here here) {
  if (name.empty()) throw Error(Code::kInvalidValue, fmt::format("{} without a name", what), here);
  if (!is_utf8(name)) throw Error(Code::kInvalidValue, fmt::format("a name of {} that is not UTF-8", what), here);
}

}  // namespace

Graph::Graph(const GraphOptions& options) : id_(next_graph()), options_(options) {}

Value Graph::declare(GraphValue value, Here here) {
  check_name("a value", value.name, here);
  value.bytes = bytes_needed(value, here);
  if (value.bytes > std::numeric_limits<std::int64_t>::max() - total_bytes_)
    throw Error(Code::kInvalidValue, fmt::format("with value {} the graph takes more than 2^63 bytes", told(value)),
                here);
  const auto index = static_cast<std::uint32_t>(values_.size());
  if (!value_names_.emplace(value.name, index).second)
    throw Error(Code::kInvalidValue,
                fmt::format("value {}: the name is taken by {}", told(value), told(values_[value_names_[value.name]])),
                here);
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

const GraphValue& Graph::checked(Value value, std::string_view who, Here here) const {
  if (value.index >= values_.size() || (value.graph != 0 && value.graph != id_))
    throw Error(Code::kInvalidValue,
                fmt::format("{}: value {} is none of this graph's {}: it comes from another graph", who, value.index,
                            values_.size()),
                here);
  return values_[value.index];
}

void Graph::output(Value value, Here here) {
  const GraphValue& found = checked(value, "output", here);
  if (found.role != ValueRole::kActivation && found.role != ValueRole::kState)
    throw Error(Code::kInvalidValue, fmt::format("output {}: an input or a weight is the caller's own", told(found)),
                here);
  if (!is_written(value, 0, found.bytes))
    throw Error(Code::kInvalidValue, fmt::format("output {}: no op has written all of it yet", told(found)), here);
  values_[value.index].output = true;
}

ValueBytes Graph::all_of(Value value) const { return {value, 0, checked(value, "all_of", Here::at()).bytes}; }

bool Graph::is_written(Value value, std::uint64_t offset, std::uint64_t bytes) const {
  if (values_[value.index].role != ValueRole::kActivation) return true;
  return written_[value.index].contains(offset, offset + bytes);
}

bool Graph::WrittenBytes::contains(std::uint64_t from, std::uint64_t to) const {
  return std::any_of(spans_.begin(), spans_.end(),
                     [&](const Span& span) { return span.from <= from && to <= span.to; });
}

void Graph::WrittenBytes::add(std::uint64_t from, std::uint64_t to) {
  Span joined{from, to};
  const auto touches = [&](const Span& span) { return span.from <= joined.to && joined.from <= span.to; };
  const auto first = std::find_if(spans_.begin(), spans_.end(), touches);
  auto last = first;
  for (; last != spans_.end() && touches(*last); ++last)
    joined = {std::min(joined.from, last->from), std::max(joined.to, last->to)};
  spans_.erase(first, last);
  const auto before = [](const Span& a, const Span& b) { return a.from < b.from; };
  spans_.insert(std::upper_bound(spans_.begin(), spans_.end(), joined, before), joined);
}

void Graph::check_bytes(const GraphOp& op, const ValueBytes& bytes, bool write, Here here) const {
  const GraphValue& value = checked(bytes.value, fmt::format("op '{}'", op.name), here);
  const auto refuse = [&](const std::string& why) {
    throw Error(Code::kInvalidValue,
                fmt::format("op '{}' {} bytes {} to {} of {}: {}", op.name, write ? "writes" : "reads", bytes.offset,
                            bytes.offset + bytes.bytes, told(value), why),
                here);
  };
  if (bytes.bytes == 0) refuse("these are none");
  if (bytes.offset > value.bytes || bytes.bytes > value.bytes - bytes.offset)
    refuse(fmt::format("it has {}", value.bytes));
  if (write && value.role == ValueRole::kInput) refuse("inputs are given by the caller and never written");
  if (write && value.role == ValueRole::kWeight) refuse("weights are never written");
  if (!write && !is_written(bytes.value, bytes.offset, bytes.bytes)) refuse("no earlier op has written all of them");
}

void Graph::add_op(GraphOp op, Here here) {
  check_name("an op", op.name, here);
  if (!op.kernel) throw Error(Code::kInvalidValue, fmt::format("op '{}' has no kernel", op.name), here);
  if (op_names_.contains(op.name))
    throw Error(Code::kInvalidValue, fmt::format("op '{}': the name is taken by an earlier op", op.name), here);
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

}  // namespace slip
