// Runner: runs a graph on a device step by step, with its weights placed and loaded by a WeightsPlan.
//
//   slip::Runner runner(device, graph, plan, slip::WeightSource::files("model/"));
//   std::ranges::copy(tokens, runner.input<float>(x).begin());
//   runner.step();                                     // returns at once
//   use(runner.output<float>(y));                      // waits for that step
//
// Thread rule: one thread at a time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "slip/weights.hpp"

namespace slip {

// Where the bytes of weights come from.
class WeightSource {
 public:
  // Files, as for TensorFiles::open; each weight is the tensor of the same name.
  static WeightSource files(const std::string& path, Here here = Here::at());
  // Memory of the program, which must outlive the runner. Pinned memory is copied directly. Of pageable memory a runner
  // on a GPU keeps a pinned copy.
  using Memory = std::function<std::span<const std::byte>(const GraphValue& weight)>;
  static WeightSource memory(Memory memory, MemoryKind kind = MemoryKind::kPageable);
  // A function that writes the bytes of a weight from `offset`. Only the runner's constructor calls it.
  using Fill = std::function<void(const GraphValue& weight, std::uint64_t offset, std::span<std::byte> into)>;
  static WeightSource callback(Fill fill);

  // Throws kInvalidValue unless the source has every weight of the graph with its type, shape and size.
  void check(const Graph& graph, Here here = Here::at()) const;

 private:
  friend class Loader;
  friend Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here);
  std::shared_ptr<const TensorFiles> files_;
  Memory memory_;
  MemoryKind memory_kind_ = MemoryKind::kPageable;
  Fill fill_;
};

class Runner {
 public:
  // Allocates exactly the plan's device memory and loads the resident weights.
  Runner(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source,
         Here here = Here::at());
  ~Runner();  // waits for the issued steps
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Host memory of an input for the next step. There are two such buffers: the call waits until the step before the
  // last one has read its own.
  template <class T>
  std::span<T> input(Value value, Here here = Here::at()) {
    const std::span<std::byte> bytes = input_bytes(value, here);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Issues a step and returns. Throws the error of an earlier step, if one failed.
  void step(Here here = Here::at());
  // An output of the last issued step; waits for that step. The memory stays valid until the second next step() call.
  template <class T>
  std::span<const T> output(Value value, Here here = Here::at()) {
    const std::span<const std::byte> bytes = output_bytes(value, here);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  void sync(Here here = Here::at());

  std::uint64_t compute_stream() const;  // id of the compute stream in traces

 private:
  struct State;
  std::span<std::byte> input_bytes(Value value, Here here);
  std::span<const std::byte> output_bytes(Value value, Here here);
  std::unique_ptr<State> state_;
};

// Measures the costs for plan_weights(), with loads done as the runner does them; for files also the disk
// (Costs::read).
Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here = Here::at());

// A measured run compared with its prediction, op by op.
struct Comparison {
  struct Difference {
    std::string op;
    Picos predicted = 0, measured = 0;  // per step in the steady state
  };
  Picos predicted = 0, measured = 0;            // per step
  Picos predicted_idle = 0, measured_idle = 0;  // part of the step in which no op ran
  std::vector<Difference> differences;          // largest first
  double error() const;                         // relative error of the step time: 0.05 is 5 %
  std::string text(std::size_t max_lines = 5) const;
};
Comparison compare_weights(const Graph& graph, const Prediction& prediction, const TraceData& measured,
                           std::uint64_t compute_stream);

}  // namespace slip
