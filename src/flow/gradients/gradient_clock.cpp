#include "flow/gradients/gradient_clock.hpp"

#include <algorithm>

namespace slip::flow {
namespace {

Picos since(const TimedEvent& end, const TimedEvent& start) { return Picos{(end - start).count()} * 1000; }

}  // namespace

// Records each event once, since an event allocates its memory when it is recorded for the first time.
void GradientClock::prepare(std::size_t calls, StreamRef stream, Here here) {
  const auto touch = [&](TimedEvent& event) {
    if (!event.recorded()) stream.record(event, here);
  };
  for (Recording& set : sets_) {
    make_room(set, calls);
    if (set.wait_list.size() <= parameters_) set.wait_list.resize(parameters_ + 1);  // one more for clip_norm()
    for (std::vector<TimedEvent>* const events : {&set.arrivals, &set.starts, &set.ends})
      std::ranges::for_each(*events, touch);
    for (RecordedWait& wait : set.wait_list) touch(wait.reached), touch(wait.left);
  }
}

void GradientClock::begin_step(bool recorded, std::size_t calls) {
  ++step_;
  recording_ = recorded;
  if (!recorded) return;
  Recording& set = sets_[step_ % 2];
  set.step = step_;
  make_room(set, calls);
  set.arrived = 0;
  set.calls = calls;
  set.waits = 0;
}

void GradientClock::arrived(std::uint32_t parameter, StreamRef stream, Here here) {
  Recording& set = sets_[step_ % 2];
  stream.record(set.arrivals[parameter], here);
  set.sources[parameter] = stream.id();
  if (set.arrived++ == 0) set.first = parameter;
}

void GradientClock::reached(std::uint32_t parameter, std::uint32_t call, StreamRef stream, Here here) {
  Recording& set = sets_[step_ % 2];
  if (set.waits == set.wait_list.size()) set.wait_list.emplace_back();
  RecordedWait& wait = set.wait_list[set.waits++];
  wait.parameter = parameter;
  wait.call = call;
  wait.stream = stream.id();
  stream.record(wait.reached, here);
}

const GradientClock::Recording* GradientClock::recording(int ago) const {
  const std::uint64_t wanted = step_ - static_cast<std::uint64_t>(ago);
  const Recording& set = sets_[wanted % 2];
  const bool whole = set.step == wanted && set.arrived == parameters_ && wanted > 0;
  return whole && (ago > 0 || recording_) ? &set : nullptr;
}

bool GradientClock::done(const Recording& of) {
  for (const TimedEvent& event : of.arrivals) {
    if (!event.query()) return false;
  }
  for (std::size_t i = 0; i < of.calls; ++i) {
    if (!of.starts[i].query() || !of.ends[i].query()) return false;
  }
  for (std::size_t i = 0; i < of.waits; ++i) {
    if (!of.wait_list[i].left.query()) return false;
  }
  return true;
}

void GradientClock::fill(const Recording& of, GradientTimes& times) const {
  for (std::vector<Picos>* const list : {&times.arrivals, &times.starts, &times.ends}) list->clear();
  times.sources = of.sources;
  times.waits.clear();
  times.next_step = 0;
  // Streams are not ordered among each other: the gradient whose ready() was called first need not arrive first.
  const TimedEvent* base = &of.arrivals[of.first];
  for (const TimedEvent& event : of.arrivals) {
    if (since(event, *base) < 0) base = &event;
  }
  for (const TimedEvent& event : of.arrivals) times.arrivals.push_back(since(event, *base));
  for (std::size_t i = 0; i < of.calls; ++i) {
    times.starts.push_back(since(of.starts[i], *base));
    times.ends.push_back(since(of.ends[i], *base));
  }
  for (std::size_t i = 0; i < of.waits; ++i) {
    const RecordedWait& wait = of.wait_list[i];
    times.waits.push_back(
        {wait.parameter, wait.call, wait.stream, since(wait.reached, *base), since(wait.left, *base)});
  }
  const Recording& next = sets_[(of.step + 1) % 2];
  if (next.step == of.step + 1 && next.arrived > 0 && next.arrivals[next.first].query())
    times.next_step = since(next.arrivals[next.first], *base);
}

bool GradientClock::look(int ago, GradientTimes& into) const {
  const Recording* const set = recording(ago);
  if (!set || !done(*set)) return false;
  fill(*set, into);
  return true;
}

bool GradientClock::wait_for(int ago, GradientTimes& into) const {
  const Recording* const set = recording(ago);
  if (!set) return false;
  for (const TimedEvent& event : set->arrivals) event.sync();
  for (std::size_t i = 0; i < set->calls; ++i) set->ends[i].sync();
  for (std::size_t i = 0; i < set->waits; ++i) set->wait_list[i].left.sync();
  fill(*set, into);
  return true;
}

}  // namespace slip::flow
