#include "slip/pipeline.hpp"

#include <algorithm>
#include <vector>

#include "backend/sim/description.hpp"
#include "base/fail.hpp"
#include "flow/pipeline/pipeline_loop.hpp"
#include "runtime/core.hpp"
#include "runtime/observers.hpp"
#include "slip/figures.hpp"

namespace slip {
namespace {

void require_end(const Range& memory, std::uint64_t bytes, const char* which, Here here) {
  if (memory.bytes == bytes) return;
  base::fail(ErrorCode::kInvalidValue, here, "pipeline: its {} has {} bytes, but all elements have {}", which,
             memory.bytes, bytes);
}

bool is_pageable(const Range& memory) { return memory.block->kind == MemoryKind::kPageable; }

Picos longer(Picos time, double by) { return static_cast<Picos>(static_cast<double>(time) * (1 + by) + 0.5); }

// A simulated device on which each copy takes as long as it does while all stages run. The minimum time per chunk is
// simulated as host time of the kernel's launch.
sim::Description description_of(const PipelineStages& stages, std::uint64_t memory, int copy_engines) {
  const auto rate = [&](const LinkCost& link) {
    const double shared = link.bytes_per_second / (1 + stages.beside);
    return static_cast<std::uint64_t>(std::clamp<double>(shared, sim::kMinRate, static_cast<double>(sim::kMaxRate)));
  };
  return {.name = "pipeline",
          .memory = std::max<std::uint64_t>(memory, 1'000'000),
          .compute = {.flops = 1'000'000'000'000, .bandwidth = 1'000'000'000'000},
          .copies = {.engines = copy_engines,
                     .in = rate(stages.in),
                     .out = rate(stages.out),
                     .latency = longer((stages.in.latency + stages.out.latency) / 2, stages.beside)},
          .host = {.launch = stages.chunk}};
}

}  // namespace

struct Pipeline::State {
  Device device;
  PipelineSpec spec;
  PipelinePlan plan;
  flow::PipelineLoop loop;
  bool running = false;

  ~State() {
    if (!running) return;
    try {
      loop.drain({});
    } catch (const Error&) {  // a destructor cannot report it
    }
  }

  void set_ends(const PipelineSource& source, const PipelineSink& sink, Here here) {
    if (running) throw Error(ErrorCode::kNotReady, "pipeline: a run is under way; finish() it first", here);
    flow::PipelineEnds ends{.source = source, .sink = sink};
    if (!source.read) {
      runtime::require_range(source.memory, "pipeline source", here);
      require_end(source.memory, spec.elements * spec.bytes_in, "source", here);
    }
    if (!sink.write) {
      runtime::require_range(sink.memory, "pipeline sink", here);
      require_end(sink.memory, spec.elements * spec.bytes_out, "sink", here);
    }
    ends.stage_in = source.read || is_pageable(source.memory);
    ends.stage_out = sink.write || is_pageable(sink.memory);
    loop.set_ends(std::move(ends), here);
  }

  PipelineReport report(const Trace* trace) const {
    PipelineReport report{.predicted = plan.predicted, .bound = plan.bound, .measured = loop.elapsed()};
    if (trace) {
      const TraceData data = trace->data();
      std::vector<TraceSpan> own;
      for (const TraceSpan& span : data.spans()) {
        if (span.run && loop.ran(span.stream, span.position)) own.push_back(span);
      }
      const Figures observed = figures(own);
      if (!own.empty()) report.measured = observed.total, report.exposed = observed.exposed;
    }
    const auto bytes = static_cast<double>(spec.elements * (spec.bytes_in + spec.bytes_out));
    if (report.measured > 0) report.gigabytes_per_second = bytes / static_cast<double>(report.measured) * 1e3;
    return report;
  }
};

Pipeline::Pipeline(const Device& device, PipelineSpec spec, Here here) {
  flow::require_sane(spec, here);
  const PipelinePlan plan = flow::measure_and_plan(device, spec, here);
  state_.reset(new State{device, spec, plan, flow::PipelineLoop(device, spec, plan, here)});
}

Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

const PipelinePlan& Pipeline::plan() const { return state_->plan; }
const PipelineStages& Pipeline::stages() const { return state_->spec.stages; }

PipelineReport Pipeline::run(const PipelineSource& source, const PipelineSink& sink, Here here) {
  start(source, sink, here);
  return finish(nullptr, here);
}

void Pipeline::start(const PipelineSource& source, const PipelineSink& sink, Here here) {
  state_->set_ends(source, sink, here);
  state_->running = true;
  try {
    state_->loop.issue(here);
  } catch (...) {  // a chunk failed while later ones were being issued, or the user's function threw
    state_->running = false;
    state_->loop.drain(here);
    state_->loop.renew_streams();
    throw;
  }
}

PipelineReport Pipeline::finish(const Trace* trace, Here here) {
  if (!state_->running) throw Error(ErrorCode::kNotReady, "pipeline: no run is under way; start() one", here);
  state_->running = false;
  state_->loop.drain(here);
  return state_->report(trace);
}

Plan Pipeline::capture(const PipelineSource& source, const PipelineSink& sink, Here here) {
  state_->set_ends(source, sink, here);
  return state_->loop.capture(here);
}

Picos Pipeline::predict(Here here) const {
  static const Kernel kStage{"pipeline kernels"};
  const PipelineStages& stages = state_->spec.stages;
  const PipelinePlan& plan = state_->plan;
  PipelineSpec spec = state_->spec;
  spec.issue = [&](const PipelineChunk& chunk) {
    const Picos alone = stages.kernels.time_for(chunk.elements * spec.bytes_in);
    const Picos time = std::max<Picos>(longer(alone, stages.beside), 1);
    chunk.stream.launch(kStage, {.reads = {chunk.input}, .writes = {chunk.output}}, {.time = time});
  };
  const sim::Description description = description_of(stages, 2 * plan.memory, state_->device.info().copy_engines);
  const runtime::PrivateScope predicting;  // keeps these ops out of the program's trace
  const Device sim = sim::open_device(description, {.run_functions = false}, here);
  const Buffer source = sim.alloc(plan.chunk * spec.bytes_in, MemoryKind::kPinned, "pipeline source", here);
  const Buffer sink = sim.alloc(plan.chunk * spec.bytes_out, MemoryKind::kPinned, "pipeline sink", here);
  flow::PipelineLoop loop(sim, spec, plan, here);
  loop.set_ends({.source = source, .sink = sink, .same_place = true}, here);
  loop.issue(here);
  loop.drain(here);
  return loop.elapsed();
}

std::string PipelineReport::text() const {
  return fmt::format("measured {:.1f} us, {:.2f} GB/s; predicted {:.1f} us, bound {:.1f} us, exposed copies {:.1f} us",
                     static_cast<double>(measured) / 1e6, gigabytes_per_second, static_cast<double>(predicted) / 1e6,
                     static_cast<double>(bound) / 1e6, static_cast<double>(exposed) / 1e6);
}

}  // namespace slip
