#include "flow/gradients/gradient_step.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::flow {

GradientStep::GradientStep(Communicator& comm, Stream stream, const ParameterList& parameters,
                           const GradientReduction& reduction)
    : comm_(comm), parameters_(parameters), reduction_(reduction), stream_(std::move(stream)) {}

void GradientStep::adopt(const GradientLayout& layout, const BucketPlan& plan, Range memory, Range scratch) {
  const Event before = calls_.empty() ? Event() : calls_.back().done;  // calls run in order, so it covers all of them
  calls_.clear();
  for (const Bucket& bucket : plan.buckets) {
    Call& call = calls_.emplace_back();
    call.data = memory.slice(bucket.first, bucket.bytes);
    if (scratch.block) call.scratch = scratch.slice(bucket.first, bucket.bytes);
    call.type = layout.type_at(bucket.first);
    call.marks.resize(1);  // most programs write all gradients in one stream
    call.done = before;
  }
  std::vector<std::uint32_t> by_address(calls_.size());  // calls in the order of their data in memory
  for (std::uint32_t i = 0; i < by_address.size(); ++i) by_address[i] = i;
  std::ranges::sort(by_address, {}, [&](std::uint32_t i) { return plan.buckets[i].first; });
  states_.assign(parameters_.size(), {});
  touches_.clear();
  std::size_t at = 0;
  for (const std::uint32_t parameter : layout.order()) {
    ParameterState& state = states_[parameter];
    const std::uint64_t first = layout.first(parameter), end = first + parameters_[parameter].bytes;
    state.view = memory.slice(first, end - first);
    state.first_touch = static_cast<std::uint32_t>(touches_.size());
    const auto ends = [&](std::size_t i) {
      return plan.buckets[by_address[i]].first + plan.buckets[by_address[i]].bytes;
    };
    while (ends(at) <= first) ++at;
    for (std::size_t i = at; i < by_address.size() && plan.buckets[by_address[i]].first < end; ++i) {
      touches_.push_back(by_address[i]);
      ++state.touches;
      ++calls_[by_address[i]].touched;
      state.last_call = std::max(state.last_call, by_address[i]);
    }
  }
  waited_.clear();
  ended_ = true;
}

void GradientStep::ready(std::uint32_t parameter, StreamRef stream, GradientClock& clock, Here here) {
  ParameterState& state = states_[parameter];
  if (clock.records()) clock.arrived(parameter, stream, here);
  state.ready = true;
  for (std::uint32_t i = 0; i < state.touches; ++i) {
    Call& call = calls_[touches_[state.first_touch + i]];
    mark(call, stream, here);
    --call.pending;
  }
  for (; next_ < calls_.size() && calls_[next_].pending == 0; ++next_) make(next_, clock, here);
}

// A later mark of the same stream replaces the earlier one. On a GPU a record takes a microsecond between two kernels.
// So if one stream wrote all gradients of the call in the step before, only its last mark is recorded. If another
// stream joins it in this step, the postponed record comes then: it may cover more work than it needs to.
void GradientStep::mark(Call& call, StreamRef stream, Here here) {
  const bool may_postpone = call.by_one_stream && call.marks[0].stream == stream.id() && call.pending > 1;
  std::uint32_t i = 0;
  while (i < call.marked && call.marks[i].stream != stream.id()) ++i;
  if (i == call.marked) {
    for (std::uint32_t k = 0; k < call.marked; ++k) {
      Mark& other = call.marks[k];
      if (other.postponed) other.postponed->record(other.event, here);
      other.postponed.reset();
    }
    call.by_one_stream = call.by_one_stream && i == 0;
    if (call.marked++ == call.marks.size()) call.marks.emplace_back();
    call.marks[i].stream = stream.id();
  }
  Mark& own = call.marks[i];
  own.postponed.reset();
  if (may_postpone && call.by_one_stream) own.postponed = stream;
  else stream.record(own.event, here);
}

void GradientStep::await(std::uint32_t call, StreamRef stream, Here here) {
  const auto found = std::ranges::find(waited_, stream.id(), &Waited::stream);
  if (found != waited_.end() && found->call >= call) return;
  stream.wait(calls_[call].done, here);
  if (found != waited_.end()) found->call = call;
  else waited_.push_back({stream.id(), call});
}

void GradientStep::make(std::uint32_t index, GradientClock& clock, Here here) {
  Call& call = calls_[index];
  for (std::uint32_t i = 0; i < call.marked; ++i) stream_.wait(call.marks[i].event, here);
  if (clock.records()) clock.started(index, stream_, here);
  reduction_.enqueue({comm_, stream_, call.data, call.type, call.scratch}, here);
  if (clock.records()) clock.ended(index, stream_, here);
  stream_.record(call.done, here);
}

std::string GradientStep::text_of(std::uint32_t call, Detail detail) const {
  std::string text;
  std::uint32_t more = 0;
  for (std::uint32_t parameter = 0; parameter < states_.size(); ++parameter) {
    const ParameterState& state = states_[parameter];
    const auto begin = touches_.begin() + state.first_touch;
    if (std::find(begin, begin + state.touches, call) == begin + state.touches) continue;
    const Parameter& one = parameters_[parameter];
    if (text.empty()) text = detail == Detail::kSize ? one.text() : fmt::format("'{}'", one.name);
    else ++more;
  }
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

std::string GradientStep::missing(std::uint32_t call) const {
  for (std::uint32_t parameter = 0; parameter < states_.size(); ++parameter) {
    const ParameterState& state = states_[parameter];
    if (state.ready) continue;
    for (std::uint32_t i = 0; i < state.touches; ++i) {
      if (touches_[state.first_touch + i] <= call) return parameters_[parameter].text();
    }
  }
  return "none";
}

void GradientStep::begin() {
  for (ParameterState& state : states_) state.ready = false;
  for (Call& call : calls_) {
    call.pending = call.touched;
    call.by_one_stream = call.marked == 1;
    call.marked = 0;
  }
  waited_.clear();
  next_ = 0;
  ended_ = false;
}

}  // namespace slip::flow
