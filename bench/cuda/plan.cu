// A plan of 64 small kernels in two streams, forked and joined, compared with a CUDA graph captured from the same
// calls.
#include "bars.hpp"
#include "gpu.hpp"
#include "slip/plan.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kBranch = 31;                // kernels of each of the two branches
constexpr std::size_t kKernels = 2 * kBranch + 2;  // 64: also one before the fork and one after the join
constexpr std::size_t kLaunches = 200;
constexpr double kLimitPercent = 105;

class RawGraph {
 public:
  RawGraph(const Counter& counter, const RawStream& a, const RawStream& b) {
    const RawEvent fork(cudaEventDisableTiming), join(cudaEventDisableTiming);
    const auto launch = [&](cudaStream_t stream) { launch_count(counter.raw_unused(), counter.raw_word(), 1, stream); };
    check(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    launch(a);
    cudaEventRecord(fork, a);
    cudaStreamWaitEvent(b, fork, 0);
    for (std::size_t i = 0; i < kBranch; ++i) launch(a), launch(b);
    cudaEventRecord(join, b);
    cudaStreamWaitEvent(a, join, 0);
    launch(a);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(a, &graph), "cudaStreamEndCapture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(made, "cudaGraphInstantiate");
    check(cudaGraphUpload(graph_, a), "cudaGraphUpload");
    a.sync();
  }
  ~RawGraph() { cudaGraphExecDestroy(graph_); }
  RawGraph(const RawGraph&) = delete;
  RawGraph& operator=(const RawGraph&) = delete;
  void launch(cudaStream_t stream) const { cudaGraphLaunch(graph_, stream); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

Plan capture(const Counter& counter, const Stream& a, const Stream& b) {
  const auto launch = [&](const Stream& stream) {
    stream.launch(kCount, {.reads = {counter.unused()}, .writes = {counter.word()}, .scalars = {1u}});
  };
  a.begin_capture();
  launch(a);
  b.wait(a.record());
  for (std::size_t i = 0; i < kBranch; ++i) launch(a), launch(b);
  a.wait(b.record());
  launch(a);
  return a.end_capture();
}

Recorded record_plan(Context& context) {
  const std::size_t launches = context.iterations(kLaunches);
  const Counter counter;
  const Stream a = device().stream(StreamFlags::kNonBlocking), b = device().stream(StreamFlags::kNonBlocking);
  const RawStream raw_a, raw_b;
  // A kernel must be loaded before a capture sees it: loading is not allowed within one.
  launch_count(counter.raw_unused(), counter.raw_word(), 1, raw_a);
  raw_a.sync();
  Plan plan = capture(counter, a, b);
  const RawGraph graph(counter, raw_a, raw_b);
  const auto timed = [&](const auto& launch, const auto& stream) {
    counter.reset();
    const Timer timer;
    for (std::size_t i = 0; i < launches; ++i) launch();
    stream.sync();
    const double elapsed = timer.elapsed_ns();
    counter.expect_count(launches * kKernels);
    return elapsed / static_cast<double>(launches);
  };
  return percent(context, take_pairs(
                              context, [&] { return timed([&] { a.launch(plan); }, a); },
                              [&] { return timed([&] { graph.launch(raw_a); }, raw_a); }));
}

}  // namespace

void add_plan_bars(Harness& harness) {
  harness.add({.area = "cuda",
               .name = "plan_64_kernels_vs_graph",
               .unit = Unit::kPercent,
               .limit = kLimitPercent,
               .record = on_gpu(record_plan)});
}

}  // namespace slip::bench
