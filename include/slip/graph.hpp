// Graph: a model as data: ops in the order in which they run, with the values that they read and write. Values are
// inputs, weights, states (kept from step to step) and activations. A graph has shapes and costs; plan_weights
// (weights.hpp) decides where the bytes lie.
//
//   slip::Graph graph;
//   slip::Value x = graph.input("x", slip::DataType::kF32, {64, 1024});
//   slip::Value w = graph.weight("w", slip::DataType::kF32, {4096, 1024});
//   graph.output(graph.gelu("act", graph.linear("up", x, w)));
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slip/error.hpp"
#include "slip/op.hpp"
#include "slip/tensors.hpp"

namespace slip {

// A handle of a value: its number in its graph.
struct Value {
  std::uint32_t index = 0;
  std::uint32_t graph = 0;  // id of its graph, so that another graph refuses it; 0: unchecked
  friend bool operator==(Value a, Value b) { return a.index == b.index; }
};

enum class ValueRole : std::uint8_t {
  kInput,       // given by the caller for each step
  kWeight,      // never written
  kState,       // kept on the device from step to step, zero before the first one; for example a cache
  kActivation,  // written by an op; its memory is reused after its last reader
};

struct GraphValue {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  ValueRole role = ValueRole::kActivation;
  bool output = false;  // an activation or state that the caller wants after each step
  std::uint64_t bytes = 0;
};

// Bytes of a value. An op may need only some rows of a weight: the other rows need not be in memory.
struct ValueBytes {
  Value value;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// One op: its kernel is launched with the bytes of `reads` and `writes`, in this order, and `scalars`.
struct GraphOp {
  std::string name;
  const Kernel* kernel = nullptr;
  std::vector<ValueBytes> reads = {};
  std::vector<ValueBytes> writes = {};
  std::vector<Scalar> scalars = {};
  Cost cost = {};
};

struct GraphOptions {
  // A linear op with a larger weight becomes several ops, each for a part of the output rows: so fewer bytes of weights
  // must be in memory at a time. Parts have a multiple of 128 rows. They do not depend on the placement of weights, and
  // so neither do the bits of the results.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;
  // A smaller weight is loaded together with its neighbours in the order of use, since tiny copies are slow.
  std::uint64_t join_bytes = std::uint64_t{1} << 20;
};

// Calls with values that do not match throw kInvalidValue with the op's name, the values and their shapes.
class Graph {
 public:
  explicit Graph(const GraphOptions& options = {});

  Value input(std::string name, DataType type, Shape shape, Here here = Here::at());
  Value weight(std::string name, DataType type, Shape shape, Here here = Here::at());
  Value state(std::string name, DataType type, Shape shape, Here here = Here::at());
  void output(Value value, Here here = Here::at());  // an activation that an op has written, or a state

  // Built-in ops. The result has the op's name. x is [..., in]: all dimensions but the last are tokens. Types are f32
  // or bf16, the same for all values of an op; sums are accumulated in f32.
  Value linear(std::string name, Value x, Value weight, Here here = Here::at());  // weight [out, in]; x * weight^T
  Value bias(std::string name, Value x, Value weight, Here here = Here::at());    // x + weight [last dimension]
  Value add(std::string name, Value a, Value b, Here here = Here::at());          // one of them may be a weight
  Value multiply(std::string name, Value a, Value b, Here here = Here::at());
  Value relu(std::string name, Value x, Here here = Here::at());
  Value gelu(std::string name, Value x, Here here = Here::at());  // the exact one, with erf
  Value silu(std::string name, Value x, Here here = Here::at());
  Value rms_norm(std::string name, Value x, Value weight, double epsilon = 1e-5, Here here = Here::at());
  Value layer_norm(std::string name, Value x, Value weight, Value bias, double epsilon = 1e-5, Here here = Here::at());

  // Any other op. Declare the values that it writes first. An earlier op must have written the bytes that it reads.
  Value activation(std::string name, DataType type, Shape shape, Here here = Here::at());
  void add_op(GraphOp op, Here here = Here::at());
  ValueBytes all_of(Value value) const;

  std::span<const GraphValue> values() const { return values_; }
  std::span<const GraphOp> ops() const { return ops_; }
  const GraphValue& operator[](Value value) const { return values_[value.index]; }
  std::optional<Value> find(std::string_view name) const;
  std::uint64_t bytes_of(ValueRole role) const;
  const GraphOptions& options() const { return options_; }

 private:
  struct Written {
    std::uint64_t from, to;
  };
  struct RowOp;  // a built-in op that works row by row (graph_ops.cpp)

  Value declare(GraphValue value, Here here);
  const GraphValue& checked(Value value, std::string_view who, Here here) const;
  void check_bytes(const GraphOp& op, const ValueBytes& bytes, bool write, Here here) const;
  void note_written(const ValueBytes& bytes);
  bool is_written(Value value, std::uint64_t offset, std::uint64_t bytes) const;
  void check_new_op(const std::string& name, Here here) const;
  const GraphValue& check_rows(const std::string& name, Value x, Here here) const;
  void check_like(const std::string& name, Value x, Value other, const Shape& shape, Here here) const;
  Value add_row_op(std::string name, const RowOp& op, std::span<const Value> reads, Here here);
  Value add_alike(std::string name, const RowOp& op, Value a, Value b, Here here);

  std::uint32_t id_;  // copies have the same id: values of one are valid in the other
  GraphOptions options_;
  std::vector<GraphValue> values_;
  std::vector<std::vector<Written>> written_;  // by value: written byte ranges, ascending and merged
  std::vector<GraphOp> ops_;
  std::map<std::string, std::uint32_t, std::less<>> value_names_;
  std::set<std::string, std::less<>> op_names_;
  std::uint64_t total_bytes_ = 0;
};

// A graph of built-in ops as JSON. Throws kIo, kParse with the file and the position, and kInvalidValue as above.
Graph read_graph(const std::string& path, Here here = Here::at());
void write_graph(const Graph& graph, const std::string& path, Here here = Here::at());

}  // namespace slip
