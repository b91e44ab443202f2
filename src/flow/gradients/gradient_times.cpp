#include "flow/gradients/gradient_times.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip::flow {
namespace {

Picos since(const TimedEvent& end, const TimedEvent& start) { return Picos{(end - start).count()} * 1000; }

// The chain of the stream that waits. The first wait of a stream adds its chain.
StepAnalysis::Chain& chain_of(const GradientTimes& times, const GradientTimes::WaitTimes& wait,
                              StepAnalysis& analysis) {
  const auto known = std::ranges::find(analysis.chains, wait.stream, &StepAnalysis::Chain::stream);
  if (known != analysis.chains.end()) return *known;
  Picos last_gradient = -1;
  for (std::size_t i = 0; i < times.arrivals.size(); ++i) {
    if (times.sources[i] == wait.stream) last_gradient = std::max(last_gradient, times.arrivals[i]);
  }
  return analysis.chains.emplace_back(StepAnalysis::Chain{wait.stream, last_gradient, wait.reached, wait.reached, 0});
}

// A stream would have used the parameter at `due`. The earliest use counts.
void note_need(StepAnalysis& analysis, std::size_t parameter, Picos due) {
  Picos& needed = analysis.needed[parameter];
  needed = analysis.known[parameter] ? std::min(needed, due) : due;
  analysis.known[parameter] = 1;
}

double milliseconds(Picos time) { return static_cast<double>(time) / 1e9; }

// Returns why a stream stalled for a call since `from`. Either the call queued behind other calls, or its transfer took
// the expected time `cost`, or it took longer.
std::string cause_of(const GradientReport::Part& part, Picos from, Picos cost) {
  const auto within = [&](Picos begin, Picos end) {
    return std::max<Picos>(0, std::min(end, part.end) - std::max(begin, from));
  };
  const Picos behind = within(part.ready, part.start);
  const Picos own = within(part.start, std::min(part.end, part.start + cost));
  const Picos slow = within(part.start + cost, part.end);
  if (behind >= own && behind >= slow) return "behind the calls before it";
  if (slow > own) return "slower than measured alone: another rank joined the call late, or the link was shared";
  return part.start <= part.ready + cost / 10 ? "its gradients came last" : "its own transfer";
}

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

void GradientClock::begin_step(bool recorded, std::size_t calls, std::uint64_t step, std::uint64_t plan) {
  ++step_;
  recording_ = recorded;
  if (!recorded) return;
  last_set_ = 1 - last_set_;
  Recording& set = sets_[last_set_];
  set.begun = step_;
  set.step = step;
  set.plan = plan;
  make_room(set, calls);
  set.arrived = 0;
  set.calls = calls;
  set.waits = 0;
}

void GradientClock::arrived(std::uint32_t parameter, StreamRef stream, Here here) {
  Recording& set = sets_[last_set_];
  stream.record(set.arrivals[parameter], here);
  set.sources[parameter] = stream.id();
  if (set.arrived++ == 0) set.first = parameter;
}

void GradientClock::reached(std::uint32_t parameter, std::uint32_t call, StreamRef stream, Here here) {
  Recording& set = sets_[last_set_];
  if (set.waits == set.wait_list.size()) set.wait_list.emplace_back();
  RecordedWait& wait = set.wait_list[set.waits++];
  wait.parameter = parameter;
  wait.call = call;
  wait.stream = stream.id();
  stream.record(wait.reached, here);
}

const GradientClock::Recording* GradientClock::recording(std::uint64_t ago) const {
  if (ago >= step_) return nullptr;
  const Recording& set = sets_[ago == last_recorded() ? last_set_ : 1 - last_set_];
  return set.begun == step_ - ago && set.arrived == parameters_ ? &set : nullptr;
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
  times.step = of.step;
  times.plan = of.plan;
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
  const Recording& next = sets_[&of == &sets_[0] ? 1 : 0];
  if (next.begun == of.begun + 1 && next.arrived > 0 && next.arrivals[next.first].query())
    times.next_step = since(next.arrivals[next.first], *base);
}

bool GradientClock::look(std::uint64_t ago, GradientTimes& into) const {
  const Recording* const set = recording(ago);
  if (!set || !done(*set)) return false;
  fill(*set, into);
  return true;
}

bool GradientClock::wait_for(std::uint64_t ago, GradientTimes& into) const {
  const Recording* const set = recording(ago);
  if (!set) return false;
  for (const TimedEvent& event : set->arrivals) event.sync();
  for (std::size_t i = 0; i < set->calls; ++i) set->ends[i].sync();
  for (std::size_t i = 0; i < set->waits; ++i) set->wait_list[i].left.sync();
  fill(*set, into);
  return true;
}

// Each stream has a chain of waits. The time between two waits is work, which takes the same time without
// communication.
void analyze_step(const GradientTimes& times, StepAnalysis& analysis) {
  analysis.backward_end = analysis.exposed = 0;
  analysis.exposed_in = 0;
  for (const Picos arrival : times.arrivals) analysis.backward_end = std::max(analysis.backward_end, arrival);
  analysis.needed.assign(times.arrivals.size(), analysis.backward_end);
  analysis.known.assign(times.arrivals.size(), 0);
  analysis.stalls.clear();
  analysis.chains.clear();
  Picos last = analysis.backward_end;
  for (const GradientTimes::WaitTimes& wait : times.waits) {
    StepAnalysis::Chain& chain = chain_of(times, wait, analysis);
    const Picos stall_end = std::min(wait.left, std::max(wait.reached, times.ends[wait.call]));
    chain.due = std::max(chain.due + (wait.reached - chain.left), analysis.backward_end);
    chain.left = stall_end;
    const bool in_backward = wait.reached < chain.last_gradient;
    const Picos from = in_backward ? wait.reached : std::max(wait.reached, analysis.backward_end);
    analysis.stalls.push_back({from, std::max<Picos>(0, stall_end - from)});
    chain.stalled += analysis.stalls.back().time;
    if (wait.parameter == GradientTimes::kAll) {
      for (std::size_t i = 0; i < analysis.needed.size(); ++i) note_need(analysis, i, chain.due);
    } else {
      note_need(analysis, wait.parameter, chain.due);
    }
    last = std::max(last, chain.due);
    if (chain.stalled > analysis.exposed) analysis.exposed = chain.stalled, analysis.exposed_in = chain.stream;
  }
  for (std::size_t i = 0; i < analysis.known.size(); ++i) {
    if (!analysis.known[i]) analysis.needed[i] = last;
  }
}

GradientReport report_of(const GradientTimes& times, const CallsOf& calls_of, const BucketPlan& plan,
                         const ReduceCost& cost) {
  GradientReport report;
  StepAnalysis analysis;
  analyze_step(times, analysis);
  for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
    report.buckets.push_back({.bucket = plan.buckets[i], .start = times.starts[i], .end = times.ends[i]});
    report.communication += times.ends[i] - times.starts[i];
  }
  for (std::uint32_t parameter = 0; parameter < times.arrivals.size(); ++parameter) {
    for (const std::uint32_t call : calls_of(parameter)) {
      GradientReport::Part& part = report.buckets[call];
      part.ready = std::max(part.ready, times.arrivals[parameter]);
    }
  }
  report.exposed = analysis.exposed;
  report.used = analysis.backward_end;
  std::vector<Picos> from(report.buckets.size(), 0);
  for (std::size_t i = 0; i < times.waits.size(); ++i) {
    const GradientTimes::WaitTimes& wait = times.waits[i];
    report.used = std::max(report.used, wait.left);
    if (wait.stream != analysis.exposed_in) continue;  // only the stream that stalled longest counts
    GradientReport::Part& part = report.buckets[wait.call];
    if (analysis.stalls[i].time > 0 && part.exposed == 0) from[wait.call] = analysis.stalls[i].from;
    part.exposed += analysis.stalls[i].time;
  }
  for (std::size_t i = 0; i < report.buckets.size(); ++i) {
    GradientReport::Part& part = report.buckets[i];
    if (part.exposed > 0)
      part.cause = cause_of(part, from[i], cost.known() ? cost.time(part.bucket.bytes) : part.end - part.start);
  }
  report.time = times.next_step > 0 ? times.next_step : report.used;
  report.bound = std::max(report.time - report.exposed, report.communication);
  return report;
}

}  // namespace slip::flow

namespace slip {
using namespace flow;

double GradientReport::overlapped() const {
  if (communication == 0) return 100;
  return 100.0 * static_cast<double>(std::max<Picos>(0, communication - exposed)) / static_cast<double>(communication);
}

double GradientReport::of_bound() const {
  return bound > 0 ? static_cast<double>(time) / static_cast<double>(bound) : 1;
}

std::string GradientReport::line() const {
  return fmt::format(
      "step {}: {:.2f} ms, communication {:.2f} ms, {:.0f} % overlapped, exposed {:.2f} ms, {:.2f}x of the bound", step,
      milliseconds(time), milliseconds(communication), overlapped(), milliseconds(exposed), of_bound());
}

std::string GradientReport::text() const {
  std::string text = line() + "\n";
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    const Part& part = buckets[i];
    text += fmt::format("  bucket {:>3} {:>12} bytes: ready {:.3f}, {:.3f} to {:.3f} ms", i, part.bucket.bytes,
                        milliseconds(part.ready), milliseconds(part.start), milliseconds(part.end));
    if (part.exposed > 0) text += fmt::format(", exposed {:.3f} ms: {}", milliseconds(part.exposed), part.cause);
    if (!part.gradients.empty()) text += fmt::format("; {}", part.gradients);
    text += "\n";
  }
  return text;
}

}  // namespace slip
