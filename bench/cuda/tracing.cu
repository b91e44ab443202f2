// The cost of a trace: kernels of 50 us in one stream, submitted and run, with a trace and without.
#include <string>
#include <utility>
#include <vector>

#include "bars.hpp"
#include "gpu.hpp"
#include "slip/trace.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kKernels = 2000;
constexpr double kKernelNs = 50'000;
constexpr double kLimitPercent = 103;

// The kernels change one range of words, one after the other. The final value shows that all of them ran.
class Chain {
 public:
  explicit Chain(std::size_t kernels) : kernels_(kernels) {}

  double run() const {
    clear();
    const Timer timer;
    submit();
    const double elapsed = timer.elapsed_ns();
    expect_result();
    return elapsed;
  }

  // The time of stop() counts: a trace may postpone work until then.
  double run_traced() {
    clear();
    Trace trace;
    const Timer timer;
    submit();
    trace.stop();
    const double elapsed = timer.elapsed_ns();
    expect_result();
    traced_ns_ = kernel_ns(trace.data());
    return elapsed;
  }

  double traced_ns() const { return traced_ns_; }

 private:
  void clear() const {
    check(cudaMemset(words_.native(), 0, words_.bytes()), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void submit() const {
    for (std::size_t i = 0; i < kernels_; ++i)
      stream_.launch(kBurn, {.reads = {words_}, .writes = {words_}, .scalars = {steps_}});
    stream_.sync();
  }

  void expect_result() const {
    unsigned word = 0;
    check(cudaMemcpy(&word, words_.native(), sizeof word, cudaMemcpyDeviceToHost), "cudaMemcpy");
    expect(word == wanted_, "not every kernel of the chain ran");
  }

  // Checks that the trace has all kernels, and returns the median of their durations.
  double kernel_ns(const TraceData& data) const {
    std::vector<double> durations;
    for (const TraceSpan& span : data.spans()) {
      if (span.kind != OpKind::kKernel || !span.run) continue;
      durations.push_back(static_cast<double>(span.ended - span.started) * 1e-3);
    }
    expect(data.dropped == 0 && durations.size() == kernels_,
           "the trace has " + std::to_string(durations.size()) + " of " + std::to_string(kernels_) + " kernels");
    const double typical = median(durations);
    expect(typical > kKernelNs / 2 && typical < kKernelNs * 2, "the trace has kernels of " + format_ns(typical));
    return typical;
  }

  std::size_t kernels_;
  unsigned steps_ = burn_steps_for(kKernelNs);
  unsigned wanted_ = churned(0, static_cast<unsigned>(kernels_) * steps_);
  Buffer words_ = device().alloc(burn_words() * sizeof(unsigned));
  Stream stream_ = device().stream(StreamFlags::kNonBlocking);
  double traced_ns_ = 0;
};

Recorded record_trace(Context& context) {
  Chain chain(context.iterations(kKernels));
  Pairs pairs = take_pairs(
      context, [&] { return chain.run_traced(); }, [&] { return chain.run(); });
  context.note("raw is the same chain without a trace; a kernel by the trace: " + format_ns(chain.traced_ns()));
  return percent(context, std::move(pairs));
}

}  // namespace

void add_trace_bars(Harness& harness) {
  harness.add({.area = "cuda",
               .name = "trace_2000_kernels",
               .unit = Unit::kPercent,
               .limit = kLimitPercent,
               .record = on_gpu(record_trace)});
}

}  // namespace slip::bench
