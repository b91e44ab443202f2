// PipelineLoop: the slots, streams and events of a pipeline, and the loop that issues its chunks. Also the functions
// that planning a pipeline, measuring its stages and running it share.
//
// Each stage of a chunk waits for the stage before it, and for the last use of its slot. The copy in waits for the
// kernels that read the slot before. The kernels wait for the copy out of their output slot. If the source is not
// pinned memory, host functions in another stream fill pinned slots from it. If the sink is not, host functions in one
// more stream empty pinned slots into it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "slip/pipeline.hpp"

namespace slip::flow {

// The source and the sink of a run: memory, or functions that read and write chunks.
struct PipelineEnds {
  PipelineSource source;
  PipelineSink sink;
  bool stage_in = false, stage_out = false;  // the source or the sink is copied through pinned slots
  bool same_place = false;  // every chunk uses the beginning of the memory: for predictions and measurements
};

class PipelineLoop {
 public:
  PipelineLoop(const Device& device, const PipelineSpec& spec, const PipelinePlan& plan, Here here);

  // Sets the source and the sink, and allocates the pinned slots that they need; a run allocates nothing later. Needs
  // drain() after issue(). Plans that were captured before keep their own source and sink.
  void set_ends(PipelineEnds ends, Here here);
  void issue(Here here);
  Plan capture(Here here);
  // Waits for all streams. If one has failed, replaces the streams, since errors of streams are sticky, and throws the
  // first error.
  void drain(Here here);
  void renew_streams();

  Picos elapsed() const { return Picos{(end_ - begin_).count()} * 1000; }  // time of the last run
  // Whether the op at this position of this stream belongs to the last run.
  bool ran(std::uint64_t stream, std::uint64_t position) const;

 private:
  // The events of the chunk that used the slot last. Null before the first chunk: then a wait has no effect.
  struct Slot {
    Event filled, copied_in, computed, copied_out, emptied;
  };
  void issue_chunk(std::uint64_t index, Here here);
  void copy_in(std::uint64_t index, Slot& slot, Here here);
  void compute(std::uint64_t index, Slot& slot, Here here);
  void copy_out(std::uint64_t index, Slot& slot, Here here);
  // Host functions fill and empty the pinned slot of a chunk.
  void fill_slot(const PipelineEnds& ends, std::uint64_t index) const;
  void empty_slot(const PipelineEnds& ends, std::uint64_t index) const;
  using HostWork = void (PipelineLoop::*)(const PipelineEnds& ends, std::uint64_t index) const;
  template <HostWork kWork>
  std::function<void()> host_work(std::uint64_t index) const;

  std::uint64_t first_of(std::uint64_t index) const { return index * plan_.chunk; }
  std::uint64_t elements_of(std::uint64_t index) const {
    return std::min(plan_.chunk, spec_.elements - first_of(index));
  }
  // The bytes of a chunk in the source, in the sink and in its slot.
  Range source_of(const PipelineEnds& ends, std::uint64_t index) const {
    return chunk_of(ends.source.memory, ends.same_place ? 0 : first_of(index), index, spec_.bytes_in);
  }
  Range sink_of(const PipelineEnds& ends, std::uint64_t index) const {
    return chunk_of(ends.sink.memory, ends.same_place ? 0 : first_of(index), index, spec_.bytes_out);
  }
  Range chunk_of(const Range& end, std::uint64_t first, std::uint64_t index, std::uint64_t element_bytes) const {
    return end.slice(first * element_bytes, elements_of(index) * element_bytes);
  }
  Range slot_of(const Buffer& slots, std::uint64_t index, std::uint64_t element_bytes) const;

  Device device_;
  const PipelineSpec spec_;
  const PipelinePlan plan_;
  Buffer in_, out_;                           // device slots
  Buffer staging_in_, staging_out_;           // pinned slots, if the source or the sink needs them
  std::shared_ptr<const PipelineEnds> ends_;  // of the present run or capture
  std::vector<Stream> streams_;               // in this order: fill, in, compute, out, empty
  std::vector<Slot> slots_;
  std::vector<StreamPoint> before_;  // where the streams were when the last run began
  TimedEvent begin_, end_;
};

// Throws kInvalidValue with the numbers. Afterwards products of the spec's sizes cannot overflow.
void require_sane(const PipelineSpec& spec, Here here);
// Bytes of device memory for `depth` slots of such chunks, or for fewer slots if there are fewer chunks.
std::uint64_t min_memory(const PipelineSpec& spec, std::uint64_t chunk, std::uint32_t depth);
// The time that each further chunk adds once the pipeline is full.
Picos period_of(const PipelineSpec& spec, const PipelinePlan& plan, int copy_engines);
// Measures the stages that the spec does not give, sets them in the spec, and plans. Then it runs the first chunks of
// this plan, because stages that run concurrently slow each other, and plans again with that slowdown.
PipelinePlan measure_and_plan(const Device& device, PipelineSpec& spec, Here here);

}  // namespace slip::flow
