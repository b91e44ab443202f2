// Pipeline: kernels over data that is larger than device memory. Chunks are copied in, computed and copied out on three
// streams that share a few slots of device memory. The chunk size and the number of slots are planned from measured
// rates within a memory budget. The host does not wait between chunks, and a run allocates nothing.
//
//   slip::Pipeline doubled(device, {.elements = n, .bytes_in = 4, .bytes_out = 4, .issue = [](const
//   slip::PipelineChunk& c) {
//     c.stream.launch(kDouble, {.reads = {c.input}, .writes = {c.output}});
//   }, .memory = 64 << 20});
//   slip::PipelineReport report = doubled.run(input, output);
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "slip/costs.hpp"
#include "slip/device.hpp"
#include "slip/plan.hpp"
#include "slip/trace.hpp"
#include "slip/verify.hpp"

namespace slip {

// One chunk, for the function that issues its kernels.
struct PipelineChunk {
  StreamRef stream;
  Range input, output;      // of this chunk, on the device
  std::uint64_t index = 0;  // of the chunk
  std::uint64_t first = 0;  // index of its first element
  std::uint64_t elements = 0;
};

// The times of a chunk's three stages. The rate of kernels is in bytes of input.
struct PipelineStages {
  Link in = {}, kernels = {}, out = {};
  Picos chunk = 0;    // minimum time from one chunk to the next, however small they are: calls and synchronization
  double beside = 0;  // how much longer stages take when they run concurrently: 0.1 is 10 %
};

struct PipelineSpec {
  std::uint64_t elements = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;  // of an element
  // Issues one or more kernels of a chunk to its stream. They must declare the ranges that they use, for verify().
  std::function<void(const PipelineChunk&)> issue = {};
  std::uint64_t memory = 0;    // budget: bytes of device memory
  PipelineStages stages = {};  // if a rate is missing, all missing values are measured, on zeros
  std::uint64_t granule = 1;   // chunks have a multiple of this many elements; the last one may have fewer
  std::uint64_t chunk = 0;     // elements; 0: planned
  std::uint32_t depth = 0;     // slots; 0: planned
};

struct PipelinePlan {
  std::uint64_t chunk = 0, chunks = 0;  // elements of a chunk, and how many chunks
  std::uint32_t depth = 0;
  std::uint64_t memory = 0;            // of the device, bytes
  Picos in = 0, kernels = 0, out = 0;  // of one full chunk
  Picos predicted = 0;                 // all stages of the first chunk, plus the longest stage of each further chunk
  Picos bound = 0;                     // the time of the busiest engine alone: no plan is faster
  std::string text() const;
};

// Chooses the chunk size and depth. Of all choices within 1/100 of the best time it takes the one with the fewest
// chunks, since rates do not show every cost of a chunk. `copy_engines` is DeviceInfo's. Throws kInvalidValue if a rate
// is unknown or the memory is too small; the error names the minimum.
PipelinePlan plan_pipeline(const PipelineSpec& spec, int copy_engines = 2, Here here = Here::at());

// Where the elements come from: memory that holds all of them, or a function that reads them chunk by chunk. Pageable
// memory and functions go through pinned slots that host functions fill: `read` must not call the runtime.
struct PipelineSource {
  using Read = std::function<void(std::uint64_t first, std::span<std::byte> into)>;
  PipelineSource(Range whole) : memory(whole) {}                  // NOLINT(google-explicit-constructor)
  PipelineSource(const Buffer& whole) : memory(whole.range()) {}  // NOLINT(google-explicit-constructor)
  PipelineSource(Read from) : read(std::move(from)) {}            // NOLINT(google-explicit-constructor)
  Range memory = {};
  Read read = {};
};

// Where the results go, in the same way.
struct PipelineSink {
  using Write = std::function<void(std::uint64_t first, std::span<const std::byte> from)>;
  PipelineSink(Range whole) : memory(whole) {}                  // NOLINT(google-explicit-constructor)
  PipelineSink(const Buffer& whole) : memory(whole.range()) {}  // NOLINT(google-explicit-constructor)
  PipelineSink(Write to) : write(std::move(to)) {}              // NOLINT(google-explicit-constructor)
  Range memory = {};
  Write write = {};
};

struct PipelineReport {
  Picos predicted = 0, bound = 0;
  Picos measured = 0;               // from the first op to the last
  Picos exposed = 0;                // part of it in which copies ran and no kernel did; needs a trace
  double gigabytes_per_second = 0;  // in and out together
  std::string text() const;
};

class Pipeline {
 public:
  // Measures the missing rates, plans, and allocates. Throws kInvalidValue with the numbers if the spec is invalid.
  Pipeline(const Device& device, PipelineSpec spec, Here here = Here::at());
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();  // waits for a run that has not finished

  const PipelinePlan& plan() const;
  const PipelineStages& stages() const;

  // start() issues all chunks and returns; finish() waits for them; run() does both. They throw the error of a kernel
  // or function that failed; afterwards the pipeline can run again. With a `trace` that was recording, times come from
  // it.
  PipelineReport run(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  void start(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  PipelineReport finish(const Trace* trace = nullptr, Here here = Here::at());

  // Captures a run as a Plan, for verify(). The plan may be launched while the pipeline, source and sink exist.
  Plan capture(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  // The time of the same loop on a sim device with these stages and with pinned source and sink.
  Picos predict(Here here = Here::at()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
