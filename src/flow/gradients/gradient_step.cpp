#include "flow/gradients/gradient_step.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::flow {

GradientStep::GradientStep(Communicator& comm, const Device& device, const ParameterList& parameters,
                           const GradientReduction& reduction)
    : comm_(comm),
      parameters_(parameters),
      reduction_(reduction),
      stream_(device.stream(StreamFlags::kNonBlocking, device.info().max_priority)) {}

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

// A later mark of the same stream replaces the earlier one.
void GradientStep::mark(Call& call, StreamRef stream, Here here) {
  std::uint32_t i = 0;
  while (i < call.marked && call.marks[i].stream != stream.id()) ++i;
  if (i == call.marked) {
    if (call.marked++ == call.marks.size()) call.marks.emplace_back();
    call.marks[i].stream = stream.id();
  }
  stream.record(call.marks[i].event, here);
}

void GradientStep::make(std::uint32_t index, GradientClock& clock, Here here) {
  Call& call = calls_[index];
  for (std::uint32_t i = 0; i < call.marked; ++i) stream_.wait(call.marks[i].event, here);
  if (clock.records()) clock.started(index, stream_, here);
  reduction_.enqueue({comm_, stream_, call.data, call.type, call.scratch}, here);
  if (clock.records()) clock.ended(index, stream_, here);
  stream_.record(call.done, here);
}

void GradientStep::set_done(const Event& event) {
  for (Call& call : calls_) call.done = event;
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

std::uint32_t GradientStep::first_missing() const {
  std::uint32_t parameter = 0;
  while (parameter < states_.size() && states_[parameter].ready) ++parameter;
  return parameter;
}

void GradientStep::begin() {
  for (ParameterState& state : states_) state.ready = false;
  for (Call& call : calls_) {
    call.pending = call.touched;
    call.marked = 0;
  }
  next_ = 0;
  ended_ = false;
}

}  // namespace slip::flow
