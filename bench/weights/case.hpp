// One stack of blocks on one device, run within several plans.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/stack.hpp"
#include "slip/slip.hpp"

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

}  // namespace slip::bench
