// Copy in, compute and copy out of 16 chunks over four streams, compared with a lower bound: all work of the busiest
// engine, and one chunk on each of the other engines before and after it. The work of each engine is measured alone,
// with raw CUDA calls, before each pair of runs.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bars.hpp"
#include "gpu.hpp"

namespace slip::bench {
namespace {

constexpr std::size_t kBytes = std::size_t{256} << 20;
constexpr std::size_t kChunks = 16;
constexpr std::size_t kChunk = kBytes / kChunks;
constexpr std::size_t kChunkWords = kChunk / sizeof(unsigned);
constexpr std::size_t kStreams = 4;  // three keep three engines busy; the fourth makes up for variations in time
constexpr double kLimitPercent = 103;
// Copies in both directions at the same time are each a little slower than alone, because they share the bus. Compute
// takes this much longer than a copy alone, so it is the busiest engine even then, and the bound can be reached.
constexpr double kComputePerCopy = 1.15;

struct Turn {
  double in, compute, out;  // GPU time of all chunks, alone
  double ours, raw;         // host time of the whole pipeline

  double bound() const {
    const double busiest = std::max({in, compute, out});
    return busiest + (in + compute + out - busiest) / static_cast<double>(kChunks);
  }
};

class Pipeline {
 public:
  Pipeline() {
    expect(burn_words() <= kChunkWords, "the device has more threads than a chunk has words");
    for (std::size_t i = 0; i < kStreams; ++i) streams_.push_back(device().stream(StreamFlags::kNonBlocking));
    unsigned* const words = static_cast<unsigned*>(source_.native());
    for (std::size_t i = 0; i < kBytes / sizeof(unsigned); ++i) words[i] = input(i);
    std::fill_n(static_cast<unsigned*>(target_.native()), kBytes / sizeof(unsigned), 0);
    copies_in();
    const double copy = std::max(copies_in(), copies_out()) / static_cast<double>(kChunks);
    steps_ = burn_steps_for(kComputePerCopy * copy);
  }

  Turn turn(bool ours_first) {
    Turn result{};
    result.in = copies_in(), result.compute = kernels(), result.out = copies_out();
    if (ours_first) result.ours = ours(), result.raw = raw();
    else result.raw = raw(), result.ours = ours();
    return result;
  }

 private:
  static unsigned input(std::size_t i) { return static_cast<unsigned>(i * 2654435761u + 12345u); }
  static void* chunk(const Buffer& buffer, std::size_t i) {
    return static_cast<std::byte*>(buffer.native()) + i * kChunk;
  }

  void copy_in(std::size_t i, cudaStream_t stream) const {
    cudaMemcpyAsync(chunk(memory_, i), chunk(source_, i), kChunk, cudaMemcpyHostToDevice, stream);
  }
  void compute(std::size_t i, cudaStream_t stream) const {
    launch_burn(static_cast<unsigned*>(chunk(memory_, i)), steps_, stream);
  }
  void copy_out(std::size_t i, cudaStream_t stream) const {
    cudaMemcpyAsync(chunk(target_, i), chunk(memory_, i), kChunk, cudaMemcpyDeviceToHost, stream);
  }

  template <class Step>
  double alone(const Step& step) const {
    return gpu_ns(raw_streams_[0], [&] {
      for (std::size_t i = 0; i < kChunks; ++i) step(i, static_cast<cudaStream_t>(raw_streams_[0]));
    });
  }
  double copies_in() const {
    return alone([this](std::size_t i, cudaStream_t stream) { copy_in(i, stream); });
  }
  double kernels() const {
    return alone([this](std::size_t i, cudaStream_t stream) { compute(i, stream); });
  }
  double copies_out() const {
    return alone([this](std::size_t i, cudaStream_t stream) { copy_out(i, stream); });
  }

  double ours() {
    clear();
    const Timer timer;
    for (std::size_t i = 0; i < kChunks; ++i) {
      const Stream& stream = streams_[i % kStreams];
      const Range chunk = memory_.slice(i * kChunk, kChunk);
      stream.copy(chunk, source_.slice(i * kChunk, kChunk));
      stream.launch(kBurn, {.reads = {chunk}, .writes = {chunk}, .scalars = {steps_}});
      stream.copy(target_.slice(i * kChunk, kChunk), chunk);
    }
    for (const Stream& stream : streams_) stream.sync();
    const double elapsed = timer.elapsed_ns();
    expect_result();
    return elapsed;
  }

  double raw() {
    clear();
    const Timer timer;
    for (std::size_t i = 0; i < kChunks; ++i) {
      const cudaStream_t stream = raw_streams_[i % kStreams];
      copy_in(i, stream), compute(i, stream), copy_out(i, stream);
    }
    for (const RawStream& stream : raw_streams_) stream.sync();
    const double elapsed = timer.elapsed_ns();
    expect_result();
    return elapsed;
  }

  // The words of a chunk that are checked: the first and the last word that the kernel changes, and the last word of
  // the chunk, which it does not change.
  std::array<std::size_t, 3> probes() const { return {0, burn_words() - 1, kChunkWords - 1}; }

  void clear() {
    check(cudaMemset(memory_.native(), 0, kBytes), "cudaMemset");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    for (std::size_t i = 0; i < kChunks; ++i)
      for (const std::size_t probe : probes()) static_cast<unsigned*>(chunk(target_, i))[probe] = 0;
  }

  void expect_result() const {
    check(cudaGetLastError(), "pipeline");
    for (std::size_t i = 0; i < kChunks; ++i) {
      for (const std::size_t probe : probes()) {
        const unsigned before = input(i * kChunkWords + probe);
        const unsigned wanted = probe < burn_words() ? churned(before, steps_) : before;
        expect(static_cast<const unsigned*>(chunk(target_, i))[probe] == wanted, "the pipeline's result is wrong");
      }
    }
  }

  Buffer source_ = device().alloc(kBytes, MemoryKind::kPinned), target_ = device().alloc(kBytes, MemoryKind::kPinned);
  Buffer memory_ = device().alloc(kBytes);
  std::vector<Stream> streams_;
  std::array<RawStream, kStreams> raw_streams_;
  unsigned steps_ = 0;
};

Recorded record_overlap(Context& context) {
  Pipeline pipeline;
  Recorded recorded;
  recorded.ours.name = "ours";
  std::vector<double> raw_percent;
  Series bound{"bound_ns", {}, {}}, ours{"ours_ns", {}, {}}, raw{"raw_ns", {}, {}};
  Series in{"copy_in_alone_ns", {}, {}}, compute{"compute_alone_ns", {}, {}}, out{"copy_out_alone_ns", {}, {}};
  for (int i = 0; i < context.repeat() + 1; ++i) {
    const Turn turn = pipeline.turn(i % 2 == 0);
    if (i == 0) continue;
    recorded.ours.samples.push_back(100 * turn.ours / turn.bound());
    raw_percent.push_back(100 * turn.raw / turn.bound());
    const std::pair<Series*, double> samples[] = {{&bound, turn.bound()}, {&ours, turn.ours},       {&raw, turn.raw},
                                                  {&in, turn.in},         {&compute, turn.compute}, {&out, turn.out}};
    for (const auto& [series, value] : samples) series->samples.push_back(value);
  }
  context.note("medians: ours " + format_ns(median(ours.samples)) + ", bound " + format_ns(median(bound.samples)) +
               "; alone: copies in " + format_ns(median(in.samples)) + ", compute " +
               format_ns(median(compute.samples)) + ", copies out " + format_ns(median(out.samples)));
  context.note("the same pipeline in raw CUDA: " + format_value(median(raw_percent), Unit::kPercent) + " of the bound");
  recorded.peers = {bound, ours, raw, in, compute, out};
  return recorded;
}

}  // namespace

void add_overlap_bars(Harness& harness) {
  harness.add({.area = "cuda",
               .name = "overlap_16_chunks_vs_bound",
               .unit = Unit::kPercent,
               .limit = kLimitPercent,
               .record = on_gpu(record_overlap)});
}

}  // namespace slip::bench
