// Pipeline: processes data that is larger than device memory. Chunks are copied in, computed and copied out on three
// streams that share a few slots of device memory. Chunk size and number of slots are planned from measured rates and a
// memory budget. During a run the host never waits and nothing is allocated.
//
//   slip::Pipeline doubled(device, {.elements = n, .bytes_in = 4, .bytes_out = 4,
//                                   .issue = [](const slip::PipelineChunk& c) {
//     c.stream.launch(kDouble, {.reads = {c.input}, .writes = {c.output}});
//   }, .memory = 64 << 20});
//   slip::PipelineReport report = doubled.run(input, output);
//
// Thread rule: one thread at a time.
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

// One chunk, as the `issue` function gets it.
struct PipelineChunk {
  StreamRef stream;
  Range input, output;      // device memory of this chunk
  std::uint64_t index = 0;  // number of the chunk
  std::uint64_t first = 0;  // its first element
  std::uint64_t elements = 0;
};

// Costs of the three stages of a chunk. The cost of kernels depends on the bytes of input.
struct PipelineStages {
  LinkCost in = {}, kernels = {}, out = {};
  Picos chunk = 0;    // minimum time per chunk of any size: host calls, and events between stages
  double beside = 0;  // how much longer a stage takes while the others run: 0.1 is 10 %
};

struct PipelineSpec {
  std::uint64_t elements = 0;
  std::uint64_t bytes_in = 0, bytes_out = 0;  // per element
  // Launches the kernels of a chunk on its stream. They must declare their ranges, or verify() cannot prove the plan.
  std::function<void(const PipelineChunk&)> issue = {};
  std::uint64_t memory = 0;    // budget of device memory, in bytes
  PipelineStages stages = {};  // if a rate is missing, all missing values are measured, with zeros as data
  std::uint64_t granule = 1;   // chunks have a multiple of this many elements, except the last one
  std::uint64_t chunk = 0;     // elements per chunk, a multiple of the granule; 0: planned
  std::uint32_t depth = 0;     // number of slots; 0: planned
};

struct PipelinePlan {
  std::uint64_t chunk = 0, chunks = 0;  // elements per chunk, and number of chunks
  std::uint32_t depth = 0;
  std::uint64_t memory = 0;            // bytes of device memory
  Picos in = 0, kernels = 0, out = 0;  // of one full chunk
  Picos predicted = 0;                 // all stages of the first chunk, then the longest stage of each other chunk
  Picos bound = 0;                     // busy time of the busiest engine: no plan is faster
  std::string text() const;
};

// Chooses chunk size and depth. Among plans within 1 % of the best time it takes the one with the fewest chunks. The
// reason: rates do not include every cost of a chunk. `copy_engines` is DeviceInfo's. Throws kInvalidValue if a rate is
// unknown, or if nothing fits the memory; then the error has the minimum that works.
PipelinePlan plan_pipeline(const PipelineSpec& spec, int copy_engines = 2, Here here = Here::at());

// Where the elements come from: memory that holds all of them, or a function that delivers them chunk by chunk.
// Pageable memory and functions go through pinned slots that host functions fill, so `read` must not call the runtime.
struct PipelineSource {
  using Read = std::function<void(std::uint64_t first, std::span<std::byte> into)>;
  PipelineSource(Range whole) : memory(whole) {}                  // NOLINT(google-explicit-constructor)
  PipelineSource(const Buffer& whole) : memory(whole.range()) {}  // NOLINT(google-explicit-constructor)
  PipelineSource(Read from) : read(std::move(from)) {}            // NOLINT(google-explicit-constructor)
  Range memory = {};
  Read read = {};
};

// Where the results go, under the same rules.
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
  Picos measured = 0;               // from the start of the first op to the end of the last
  Picos exposed = 0;                // part of it with copies but no kernel running; known from a trace only
  double gigabytes_per_second = 0;  // in and out together
  std::string text() const;
};

class Pipeline {
 public:
  // Measures missing rates, plans, and allocates. Throws kInvalidValue with the numbers if the spec is impossible.
  Pipeline(const Device& device, PipelineSpec spec, Here here = Here::at());
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();  // waits for an unfinished run

  const PipelinePlan& plan() const;
  const PipelineStages& stages() const;

  // run() processes all chunks: start() returns when they are issued, finish() when they are done. They throw the error
  // of a failed kernel or function; the pipeline can run again afterwards. finish() takes times from `trace`, if given.
  PipelineReport run(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  void start(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  PipelineReport finish(const Trace* trace = nullptr, Here here = Here::at());

  // The run as a plan, for verify(). It may also be launched while the pipeline, source and sink exist, even after
  // runs and captures with others. Launches and runs share the slots: each must begin after the one before has ended.
  Plan capture(const PipelineSource& source, const PipelineSink& sink, Here here = Here::at());
  // Simulated time of a run with these stages, for a pinned source and sink.
  Picos predict(Here here = Here::at()) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slip
