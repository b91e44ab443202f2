// Helpers of all bars: the device, streams and events made with raw CUDA calls, kernels whose work can be checked, and
// pairs of runs. Only the main thread of the benchmark uses them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "support/cuda_check.hpp"
#include "support/harness.hpp"

namespace slip::bench {

void expect(bool holds, const std::string& otherwise);

// Wraps the record function of a bar: without a GPU it takes no samples and gives the reason.
using Record = std::function<Recorded(Context&)>;
Record on_gpu(Record record);

// "cuda:0", opened at first use. Closed by main and not by a static destructor, which would run while the CUDA runtime
// is being torn down.
const Device& device();
void close_device();

class RawStream {
 public:
  RawStream();  // does not wait for the legacy stream, like the streams it is compared with
  ~RawStream() { cudaStreamDestroy(stream_); }
  RawStream(const RawStream&) = delete;
  RawStream& operator=(const RawStream&) = delete;
  operator cudaStream_t() const { return stream_; }  // NOLINT(google-explicit-constructor): it is one, owned
  void sync() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

 private:
  cudaStream_t stream_ = nullptr;
};

class RawEvent {
 public:
  explicit RawEvent(unsigned flags) { check(cudaEventCreateWithFlags(&event_, flags), "cudaEventCreateWithFlags"); }
  ~RawEvent() { cudaEventDestroy(event_); }
  RawEvent(const RawEvent&) = delete;
  RawEvent& operator=(const RawEvent&) = delete;
  operator cudaEvent_t() const { return event_; }  // NOLINT(google-explicit-constructor): it is one, owned

 private:
  cudaEvent_t event_ = nullptr;
};

// GPU time of what `submit` puts into the stream, by events around it.
double gpu_ns(const RawStream& stream, const std::function<void()>& submit);

// kCount adds scalar 0 to the word that it writes; it does not read its read range. It is almost an empty kernel, but
// every launch can be counted: it has one thread, which makes one atomic addition and does not wait for the result.
extern const Kernel kCount;
void launch_count(const unsigned* unused, unsigned* word, unsigned value, cudaStream_t stream);

// The word that kCount counts in, used by both sides.
class Counter {
 public:
  Counter();
  Range unused() const { return memory_.slice(0, sizeof(unsigned)); }
  Range word() const { return memory_.slice(kWordAt, sizeof(unsigned)); }
  const unsigned* raw_unused() const { return static_cast<const unsigned*>(memory_.native()); }
  unsigned* raw_word() const { return static_cast<unsigned*>(memory_.native()) + kWordAt / sizeof(unsigned); }
  void reset() const;
  void expect_count(std::size_t launches) const;  // all work must be done

 private:
  static constexpr std::size_t kWordAt = 256;
  Buffer memory_;
};

// kBurn computes and hardly accesses memory: thread i replaces word i of the range by churned(word, steps).
// burn_words() threads fill every multiprocessor, so two such kernels do not run concurrently.
extern const Kernel kBurn;  // scalar 0: steps
void launch_burn(unsigned* words, unsigned steps, cudaStream_t stream);
unsigned burn_words();
unsigned burn_steps_for(double ns);  // the number of steps that take this time; measured on this device at each call
unsigned churned(unsigned word, unsigned steps);

// Samples of two sides that are measured alternately; every second pair begins with the other side. The first pair is
// not kept.
struct Pairs {
  std::vector<double> ours, raw;
};
Pairs take_pairs(const Context& context, const std::function<double()>& ours, const std::function<double()>& raw);

// The figure that a bar compares, from pairs. The samples of both sides are kept with it, as ours_ns and raw_ns.
Recorded extra_ns(Context& context, Pairs pairs);  // ours - raw
Recorded percent(Context& context, Pairs pairs);   // 100 * ours / raw

}  // namespace slip::bench
