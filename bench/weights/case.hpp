// One stack of blocks on one device, run within several plans.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/stack.hpp"
#include "slip/slip.hpp"
#include "support/harness.hpp"

namespace slip::bench {

// Weights of a stack in pinned memory, one behind the other: for every token count the same.
class StackWeights {
 public:
  StackWeights(const Device& device, const StackOptions& options);
  WeightSource source() const;
  const Buffer& memory() const { return memory_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<std::string, std::span<const std::byte>>> by_name_;
  std::uint64_t bytes_ = 0;
  Buffer memory_;
};

// A plan that runs. Inputs stay what they are; a sample is the time of some steps one after the other, in the steady
// state, divided by their number.
class RunningPlan {
 public:
  RunningPlan(const std::string& device, const Graph& graph, const WeightsPlan& plan, const WeightSource& source);
  double step_ns(int steps);
  std::uint64_t peak_bytes() const { return device_.memory().peak; }
  std::vector<std::byte> output();

 private:
  const Graph& graph_;
  Device device_;
  Runner runner_;
};

// Weight streaming on the cpu device: a file in the page cache beside all weights resident, and a model three times as
// large as the memory it may use, from disk.
void add_cpu_bars(Harness& harness);
// Runs the model within the budget and prints what it took: in a process of its own, whose memory counts.
int run_cold(const std::string& folder, std::uint64_t budget);

// Measures the costs that GPU plans are made from and writes them to a file: in a process of its own, before the bars.
int profile_gpu(const std::string& costs_file);
// Weight streaming on a GPU: the shapes of a 7B decoder, 32 blocks of 405 MB, beside raw copies, resident execution,
// PyTorch with two hand-written slots, and accelerate. A bar whose file is empty or missing is skipped.
void add_gpu_bars(Harness& harness, std::string costs_file, std::string torch_file);

}  // namespace slip::bench
