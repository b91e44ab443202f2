// Pipeline: work on data larger than the device. Chunks are copied in, computed and copied out on three streams that
// share a few slots of device memory; chunk size and slots are planned from the rates within a memory budget. The host
// waits nowhere in between, and nothing is allocated once a run has begun.
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

// What the kernels of one chunk are issued with.
struct PipelineChunk {
  StreamRef stream;
  Range input, output;      // of this chunk, on the device
  std::uint64_t index = 0;  // of the chunk
  std::uint64_t first = 0;  // element
  std::uint64_t elements = 0;
};

// What the three stages of a chunk take. Kernels go by bytes of input.
struct PipelineStages {
  Link in = {}, kernels = {}, out = {};
  Picos chunk = 0;    // least time from one chunk to the next, however small they are: calls and hand-overs
  double beside = 0;  // how much longer the stages take beside each other than alone: 0.1 is 10 %
};

struct PipelineSpec {
  std::uint64_t elements = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;  // of an element
  // Issues the kernels of a chunk to its stream, one or several; they declare what they touch, or nothing is proven.
  std::function<void(const PipelineChunk&)> issue = {};
  std::uint64_t memory = 0;    // of the device, in bytes, that may be used
  PipelineStages stages = {};  // if a rate is not given, all that is not given is measured, on zeros
  std::uint64_t granule = 1;   // chunks have a multiple of so many elements; the last one may have fewer
  std::uint64_t chunk = 0;     // elements; 0: planned
  std::uint32_t depth = 0;     // slots; 0: planned
};

struct PipelinePlan {
  std::uint64_t chunk = 0, chunks = 0;  // elements of a chunk, and how many chunks
  std::uint32_t depth = 0;
  std::uint64_t memory = 0;            // of the device, bytes
  Picos in = 0, kernels = 0, out = 0;  // of one full chunk
  Picos predicted = 0;                 // the first chunk's stages, then the longest of them for each other chunk
  Picos bound = 0;                     // the engine that has most to do, if nothing else took time: no plan is faster
  std::string text() const;
};

// Chunk size and depth: of those that come within a hundredth of the best time, the one with fewest chunks, since rates
// do not show everything that a chunk costs. `copy_engines` is DeviceInfo's. kInvalidValue when the rates are not known
// or nothing fits the memory, with the least that would do.
PipelinePlan plan_pipeline(const PipelineSpec& spec, int copy_engines = 2, Here here = Here::at());

// Where the elements come from: memory that holds all of them, or a function that is asked for them chunk by chunk.
// Pageable memory and functions go through pinned slots, filled by host functions: they must make no calls into the
// runtime.
struct PipelineSource {
  using Read = std::function<void(std::uint64_t first, std::span<std::byte> into)>;
  PipelineSource(Range whole) : memory(whole) {}                  // NOLINT(google-explicit-constructor)
  PipelineSource(const Buffer& whole) : memory(whole.range()) {}  // NOLINT(google-explicit-constructor)
  PipelineSource(Read from) : read(std::move(from)) {}            // NOLINT(google-explicit-constructor)
  Range memory = {};
  Read read = {};
};

// And where they go to.
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
  Picos exposed = 0;                // of that, copies while no kernel ran; known from a trace only
  double gigabytes_per_second = 0;  // in and out together
  std::string text() const;
};

class Pipeline {
 public:
  // Measures what is not given, plans, and allocates. kInvalidValue with the numbers when the spec cannot be right.
  Pipeline(const Device& device, PipelineSpec spec, Here here = Here::at());
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();  // waits for a run that is under way

  const PipelinePlan& plan() const;
  const PipelineStages& stages() const;

  // All chunks; start() returns when they are issued, finish() when they are done. Throws the error of a kernel or
  // function that failed; the pipeline can be run again. With a trace that was recording, times are taken from it.
  PipelineReport run(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  void start(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  PipelineReport finish(const Trace* trace = nullptr, Here here = Here::at());

  // The run as a plan, for verify(). It may be launched, too, while the pipeline and both ends are there.
  Plan capture(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  // The same loop in virtual time, on a device with these stages, both ends pinned.
  Picos predict(Here here = Here::at()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
