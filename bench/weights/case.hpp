// What the cases of bench_weights share: a stack of blocks on one device, run with several plans.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/stack.hpp"
#include "slip/slip.hpp"
#include "support/harness.hpp"

namespace slip::bench {

// Weights of a stack in pinned memory, one after the other; the same for every number of tokens.
class StackWeights {
 public:
  // kNormal: bf16 from a normal distribution with a standard deviation of 0.02, as trained weights have.
  enum class Values { kStack, kNormal };
  StackWeights(const Device& device, const model::StackOptions& options, Values values = Values::kStack);
  WeightSource source() const;
  const Buffer& memory() const { return memory_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::vector<std::pair<std::string, std::span<const std::byte>>> by_name_;
  std::uint64_t bytes_ = 0;
  Buffer memory_;
};

// Runs a plan with constant inputs. A sample is the time of several steps in the steady state, divided by their number.
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

inline constexpr const char* kGpu = "cuda:0";
inline constexpr std::uint64_t kLinkPiece = std::uint64_t{32} << 20;  // of raw copies

// The cases of a GPU need it, and the costs that profile_gpu() measured. Empty: both are there; else why not.
std::string why_no_gpu_cases(const std::string& costs_file);
// `share` of the weights as the budget; 0: the ring has two of 32 blocks, and nothing is resident.
WeightsOptions gpu_options(const Graph& graph, double share);

inline Series series(std::string name, std::vector<double> samples) {
  return {std::move(name), std::move(samples), {}};
}

// A bar that is measured by `sides`, or skipped where cases->why_not() has a reason.
template <class Cases>
void add_gpu_bar(Harness& harness, const std::shared_ptr<Cases>& cases, Bar bar,
                 std::function<Recorded(Context&, Cases&)> sides) {
  bar.area = "weights";
  bar.record = [cases, sides = std::move(sides)](Context& context) {
    const std::string reason = cases->why_not();
    if (!reason.empty()) return Recorded{{"ours", {}, reason}, {}};
    return sides(context, *cases);
  };
  harness.add(std::move(bar));
}

// Weight streaming on the cpu device: a file in the page cache compared with all weights resident, and a model from
// disk that is three times as large as the memory it may use.
void add_cpu_bars(Harness& harness);
// Runs the model within the budget and prints the results. It runs in a separate process, whose memory is measured.
int run_cold(const std::string& folder, std::uint64_t budget);

// Measures the costs that GPU plans are made from and writes them to a file. It runs in a separate process before the
// bars.
int profile_gpu(const std::string& costs_file);
// Weight streaming on a GPU: the shapes of a 7B decoder, 32 blocks of 405 MB, compared with raw copies, resident
// execution, PyTorch with two hand-written slots, and accelerate. A bar whose file is empty or missing is skipped.
void add_gpu_bars(Harness& harness, std::string costs_file, std::string torch_file);
// The same shapes with compressed weights.
void add_compressed_bars(Harness& harness, std::string costs_file);
model::StackOptions gpu_stack(std::uint64_t tokens, bool uneven = false);

}  // namespace slip::bench
