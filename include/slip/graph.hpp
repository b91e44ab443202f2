// Graph: a model as data. It lists ops in execution order, with the values they read and write. Values are inputs,
// weights, states (kept from step to step) and activations. A graph has shapes and costs but no addresses: a planner
// places the values in memory (weights.hpp).
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

// Refers to a value of one graph.
struct Value {
  std::uint32_t index = 0;
  std::uint32_t graph = 0;  // id of its graph: other graphs refuse it; 0: unknown
  friend bool operator==(Value a, Value b) { return a.index == b.index; }
};

enum class ValueRole : std::uint8_t {
  kInput,       // set by the caller before each step
  kWeight,      // never written
  kState,       // kept on the device from step to step, initially zero; for example a KV cache
  kActivation,  // written by an op, discarded after its last reader
};

struct GraphValue {
  std::string name;
  DataType type = DataType::kF32;
  Shape shape;
  ValueRole role = ValueRole::kActivation;
  bool output = false;  // the caller reads this activation or state after each step
  std::uint64_t bytes = 0;
};

// Some bytes of a value. An op that reads only some rows of a weight names them: only these must be loaded.
struct ValueBytes {
  Value value;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// One op: a launch of `kernel` with `reads`, `writes` and `scalars` as arguments, in this order.
struct GraphOp {
  std::string name;
  const Kernel* kernel = nullptr;
  std::vector<ValueBytes> reads = {};
  std::vector<ValueBytes> writes = {};
  std::vector<Scalar> scalars = {};
  Cost cost = {};
};

struct GraphOptions {
  // A linear layer with a larger weight is split along its output rows into several ops. Then less weight memory is
  // needed at a time. Parts have a multiple of 128 rows, at least 128. The split does not depend on the placement
  // of weights, so results do not either.
  std::uint64_t part_bytes = std::uint64_t{32} << 20;
  // Smaller weights are loaded together with their neighbours in order of use, because tiny copies waste the link.
  std::uint64_t join_bytes = std::uint64_t{1} << 20;
};

// Calls with values that do not match throw kInvalidValue with the op's name, the values and their shapes.
class Graph {
 public:
  explicit Graph(const GraphOptions& options = {});

  Value input(std::string name, DataType type, Shape shape, Here here = Here::at());
  Value weight(std::string name, DataType type, Shape shape, Here here = Here::at());
  Value state(std::string name, DataType type, Shape shape, Here here = Here::at());
  void output(Value value, Here here = Here::at());  // a written activation, or a state

  // Built-in ops. The result has the op's name. x is [..., in]: all dimensions but the last are tokens. All values of
  // an op have the same type, f32 or bf16; sums are accumulated in f32.
  Value linear(std::string name, Value x, Value weight, Here here = Here::at());  // x * weight^T, weight [out, in]
  Value bias(std::string name, Value x, Value weight, Here here = Here::at());    // x + weight [last dimension]
  Value add(std::string name, Value a, Value b, Here here = Here::at());          // one may be a weight
  Value multiply(std::string name, Value a, Value b, Here here = Here::at());
  Value relu(std::string name, Value x, Here here = Here::at());
  Value gelu(std::string name, Value x, Here here = Here::at());  // exact, with erf
  Value silu(std::string name, Value x, Here here = Here::at());
  Value rms_norm(std::string name, Value x, Value weight, double epsilon = 1e-5, Here here = Here::at());
  Value layer_norm(std::string name, Value x, Value weight, Value bias, double epsilon = 1e-5, Here here = Here::at());

  // Any other op. Declare its results first. An op may read only bytes that an earlier op has written.
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
  // The bytes of a value that ops have written.
  class WrittenBytes {
   public:
    void add(std::uint64_t from, std::uint64_t to);
    bool contains(std::uint64_t from, std::uint64_t to) const;

   private:
    struct Span {
      std::uint64_t from, to;
    };
    std::vector<Span> spans_;  // sorted and merged
  };
  class NewOp;  // a built-in op that is being added: its checks, then its ops (graph.cpp)

  Value declare(GraphValue value, Here here);
  const GraphValue& checked(Value value, std::string_view who, Here here) const;
  void check_bytes(const GraphOp& op, const ValueBytes& bytes, bool write, Here here) const;
  bool is_written(Value value, std::uint64_t offset, std::uint64_t bytes) const;

  std::uint32_t id_;  // copies of a graph have the same id: a Value of one is valid in the other
  GraphOptions options_;
  std::vector<GraphValue> values_;
  std::vector<WrittenBytes> written_;  // by value
  std::vector<GraphOp> ops_;
  std::map<std::string, std::uint32_t, std::less<>> value_names_;
  std::set<std::string, std::less<>> op_names_;
  std::uint64_t total_bytes_ = 0;
};

// JSON; built-in ops only. Throws kIo, kParse with the file and position, and kInvalidValue like Graph.
Graph read_graph(const std::string& path, Here here = Here::at());
void write_graph(const Graph& graph, const std::string& path, Here here = Here::at());

}  // namespace slip
