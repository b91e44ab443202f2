#include "flow/pipeline/pipeline_loop.hpp"

#include <cstring>
#include <exception>

#include "flow/weights/weight_groups.hpp"
#include "runtime/core.hpp"

namespace slip::flow {
namespace {

enum Role : std::size_t { kFill, kIn, kCompute, kOut, kEmpty, kRoles };
const Name kFillName("pipeline fill"), kInName("pipeline in"), kOutName("pipeline out"), kEmptyName("pipeline empty");

}  // namespace

PipelineLoop::PipelineLoop(const Device& device, const PipelineSpec& spec, const PipelinePlan& plan, Here here)
    : device_(device),
      spec_(spec),
      plan_(plan),
      in_(device.alloc(plan.depth * aligned(plan.chunk * spec.bytes_in), MemoryKind::kDevice, kInName, here)),
      out_(device.alloc(plan.depth * aligned(plan.chunk * spec.bytes_out), MemoryKind::kDevice, kOutName, here)),
      slots_(plan.depth) {
  renew_streams();
}

void PipelineLoop::renew_streams() {
  streams_.clear();
  for (std::size_t i = 0; i < kRoles; ++i) streams_.push_back(device_.stream(StreamFlags::kNonBlocking));
}

void PipelineLoop::set_ends(PipelineEnds ends, Here here) {
  ends_ = std::make_shared<const PipelineEnds>(std::move(ends));
  const auto pinned = [&](Buffer& buffer, std::uint64_t bytes, Name name) {
    if (!buffer) buffer = device_.alloc(plan_.depth * aligned(plan_.chunk * bytes), MemoryKind::kPinned, name, here);
  };
  if (ends_->stage_in) pinned(staging_in_, spec_.bytes_in, kFillName);
  if (ends_->stage_out) pinned(staging_out_, spec_.bytes_out, kEmptyName);
}

void PipelineLoop::issue(Here here) {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  before_.clear();
  for (const Stream& stream : streams_) before_.push_back(stream.record(here).point());
  begin_ = streams_[ends_->stage_in ? kFill : kIn].record_timed(here);
  for (std::uint64_t i = 0; i < plan_.chunks; ++i) issue_chunk(i, here);
  end_ = streams_[ends_->stage_out ? kEmpty : kOut].record_timed(here);
}

Plan PipelineLoop::capture(Here here) {
  std::fill(slots_.begin(), slots_.end(), Slot{});
  const Stream& origin = streams_[kCompute];
  origin.begin_capture(here);
  try {
    const Event begun = origin.record(here);
    for (const Stream& stream : streams_) {
      if (stream != origin) stream.wait(begun, here);
    }
    for (std::uint64_t i = 0; i < plan_.chunks; ++i) issue_chunk(i, here);
    for (const Stream& stream : streams_) {
      if (stream != origin) origin.wait(stream.record(here), here);
    }
  } catch (...) {
    try {
      static_cast<void>(origin.end_capture(here));
    } catch (const Error&) {  // the capture has failed already; the first error is rethrown below
    }
    renew_streams();
    throw;
  }
  return origin.end_capture(here);
}

void PipelineLoop::drain(Here here) {
  std::exception_ptr first;
  for (const Stream& stream : streams_) {
    try {
      stream.sync(here);
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (!first) return;
  renew_streams();
  std::rethrow_exception(first);
}

bool PipelineLoop::ran(std::uint64_t stream, std::uint64_t position) const {
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (streams_[i].id() == stream) return position > before_[i].position;
  }
  return false;
}

void PipelineLoop::issue_chunk(std::uint64_t index, Here here) {
  Slot& slot = slots_[index % plan_.depth];
  copy_in(index, slot, here);
  compute(index, slot, here);
  copy_out(index, slot, here);
}

void PipelineLoop::fill_slot(const PipelineEnds& ends, std::uint64_t index) const {
  const Range staged = slot_of(staging_in_, index, spec_.bytes_in);
  if (ends.source.read) ends.source.read(first_of(index), {runtime::address(staged), staged.bytes});
  else std::memcpy(runtime::address(staged), runtime::address(source_of(ends, index)), staged.bytes);
}

void PipelineLoop::empty_slot(const PipelineEnds& ends, std::uint64_t index) const {
  const Range staged = slot_of(staging_out_, index, spec_.bytes_out);
  if (ends.sink.write) ends.sink.write(first_of(index), {runtime::address(staged), staged.bytes});
  else std::memcpy(runtime::address(sink_of(ends, index)), runtime::address(staged), staged.bytes);
}

// A plan is launched later, when `ends_` may be those of another run: its functions share the ends of the capture. The
// functions of a run end before set_ends() is called again, and std::function stores these two words without
// allocating.
template <PipelineLoop::HostWork kWork>
std::function<void()> PipelineLoop::host_work(std::uint64_t index) const {
  if (streams_[kCompute].capturing()) return [this, ends = ends_, index] { (this->*kWork)(*ends, index); };
  return [this, index] { (this->*kWork)(*ends_, index); };
}

void PipelineLoop::copy_in(std::uint64_t index, Slot& slot, Here here) {
  const Stream& in = streams_[kIn];
  const PipelineEnds& ends = *ends_;
  Range from = ends.stage_in ? slot_of(staging_in_, index, spec_.bytes_in) : source_of(ends, index);
  if (ends.stage_in) {
    const Stream& fill = streams_[kFill];
    fill.wait(slot.copied_in, here);
    const Range source[] = {ends.source.read ? Range{} : source_of(ends, index)};
    fill.host(host_work<&PipelineLoop::fill_slot>(index),
              {.reads = std::span(source, ends.source.read ? 0 : 1), .writes = {from}, .name = kFillName}, {}, here);
    fill.record(slot.filled, here);
    in.wait(slot.filled, here);
  }
  in.wait(slot.computed, here);
  in.copy(slot_of(in_, index, spec_.bytes_in), from, kInName, here);
  in.record(slot.copied_in, here);
}

void PipelineLoop::compute(std::uint64_t index, Slot& slot, Here here) {
  const Stream& compute = streams_[kCompute];
  compute.wait(slot.copied_in, here);
  compute.wait(slot.copied_out, here);
  spec_.issue({.stream = compute,
               .input = slot_of(in_, index, spec_.bytes_in),
               .output = slot_of(out_, index, spec_.bytes_out),
               .index = index,
               .first = first_of(index),
               .elements = elements_of(index)});
  compute.record(slot.computed, here);
}

void PipelineLoop::copy_out(std::uint64_t index, Slot& slot, Here here) {
  const Stream& out = streams_[kOut];
  const PipelineEnds& ends = *ends_;
  const Range to = ends.stage_out ? slot_of(staging_out_, index, spec_.bytes_out) : sink_of(ends, index);
  out.wait(slot.computed, here);
  if (ends.stage_out) out.wait(slot.emptied, here);
  out.copy(to, slot_of(out_, index, spec_.bytes_out), kOutName, here);
  out.record(slot.copied_out, here);
  if (!ends.stage_out) return;
  const Stream& empty = streams_[kEmpty];
  empty.wait(slot.copied_out, here);
  const Range sink[] = {ends.sink.write ? Range{} : sink_of(ends, index)};
  empty.host(host_work<&PipelineLoop::empty_slot>(index),
             {.reads = {to}, .writes = std::span(sink, ends.sink.write ? 0 : 1), .name = kEmptyName}, {}, here);
  empty.record(slot.emptied, here);
}

Range PipelineLoop::slot_of(const Buffer& slots, std::uint64_t index, std::uint64_t element_bytes) const {
  return slots.slice(index % plan_.depth * aligned(plan_.chunk * element_bytes), elements_of(index) * element_bytes);
}

}  // namespace slip::flow
