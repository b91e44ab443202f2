// Runner: runs a graph on a device, step after step, with its weights placed and loaded as a plan says.
//
//   slip::Runner runner(device, graph, plan, slip::WeightSource::files("model/"));
//   std::ranges::copy(tokens, runner.input<float>(x).begin());
//   runner.step();                                     // returns at once
//   use(runner.output<float>(y));                      // waits for that step
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "slip/comparison.hpp"
#include "slip/weights.hpp"

namespace slip::flow {
class Loader;
class PackedGroups;
}  // namespace slip::flow

namespace slip {

class GroupSource;

// Where the bytes of the weights come from.
class WeightSource {
 public:
  // Files as TensorFiles::open takes them; a weight is the tensor of its name.
  static WeightSource files(const std::string& path, Here here = Here::at());
  // Memory of the program, which must live as long as the runner. Pinned memory is copied directly from there. A runner
  // on a GPU keeps a pinned copy of pageable memory.
  using Memory = std::function<std::span<const std::byte>(const GraphValue& weight)>;
  static WeightSource memory(Memory memory, MemoryKind kind = MemoryKind::kPageable);
  // A function that writes the bytes of a weight from `offset` on. It is called only while the runner is constructed.
  using Fill = std::function<void(const GraphValue& weight, std::uint64_t offset, std::span<std::byte> into)>;
  static WeightSource callback(Fill fill);

  // The weights of `from`, compressed without loss into pinned memory of the device. `from` is needed for this call
  // only. Weights that do not become smaller stay as they are. Files that `slip compress` has written need no such
  // call: files() is enough.
  static WeightSource compressed(const Device& device, const Graph& graph, const WeightSource& from,
                                 Here here = Here::at());

  // For WeightsOptions::compressed. Empty if the source has no compressed weights.
  std::function<std::uint64_t(const WeightGroup& group)> compressed_bytes(const Graph& graph) const;

  // Throws kInvalidValue unless the source has every weight of the graph with its type, shape and size.
  void check(const Graph& graph, Here here = Here::at()) const;

 private:
  friend class flow::Loader;
  friend class flow::PackedGroups;
  friend class GroupSource;
  friend Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here);
  std::shared_ptr<const TensorFiles> files_;
  Memory memory_;
  MemoryKind memory_kind_ = MemoryKind::kPageable;
  Fill fill_;
  std::shared_ptr<const flow::PackedGroups> packed_;  // compressed(): of all weight groups of the graph
};

class Runner {
 public:
  // Allocates exactly the plan's device memory and loads the resident weights.
  Runner(const Device& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source,
         Here here = Here::at());
  ~Runner();  // waits for the steps that were issued
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Host memory of an input for the next step. There are two buffers: waits until the step before the last has copied
  // its input.
  template <class T>
  std::span<T> input(Value value, Here here = Here::at()) {
    const std::span<std::byte> bytes = input_bytes(value, here);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  // Issues a step. Throws the error of an earlier step that failed.
  void step(Here here = Here::at());
  // An output of the last issued step, for which it waits. Valid until the step after the next one is issued.
  template <class T>
  std::span<const T> output(Value value, Here here = Here::at()) {
    const std::span<const std::byte> bytes = output_bytes(value, here);
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  void sync(Here here = Here::at());

  std::uint64_t compute_stream() const;  // its id, in traces

 private:
  struct State;
  std::span<std::byte> input_bytes(Value value, Here here);
  std::span<const std::byte> output_bytes(Value value, Here here);
  std::unique_ptr<State> state_;
};

// Measures the costs for a plan. Loads are measured as a Runner on this device with this source issues them. For a
// source of files Costs::read is measured, too, and Costs::decode if the weights are compressed.
Costs measure_costs(const Graph& graph, const Device& device, const WeightSource& source, Here here = Here::at());

// Proves the order of the ops that a Runner on this device with this source issues, including its loads. For this it
// captures the runner's own loader on a simulated device. The proof excludes read-ahead, that is, file reads that begin
// while an earlier load is read. A counter of free places in the ring orders them.
WeightsProof verify_weights(const WeightsPlan& plan, const Graph& graph, const Device& device,
                            const WeightSource& source, Here here = Here::at());

// Compares a measured run with its prediction. `compute_stream` is the runner's, in the trace `measured`.
Comparison compare_weights(const Graph& graph, const Prediction& prediction, const TraceData& measured,
                           std::uint64_t compute_stream);

}  // namespace slip
