#include "stress/order.hpp"

#include <algorithm>

namespace slip::stress {
namespace {

template <class T>
T& slot(std::vector<T>& list, int index) {
  if (list.size() <= static_cast<std::size_t>(index)) list.resize(static_cast<std::size_t>(index) + 1);
  return list[static_cast<std::size_t>(index)];
}

template <class T>
const T& at(const std::vector<T>& list, int index) {
  static const T kNone{};
  return static_cast<std::size_t>(index) < list.size() ? list[static_cast<std::size_t>(index)] : kNone;
}

}  // namespace

void Clock::join(const Clock& other) {
  if (at_.size() < other.at_.size()) at_.resize(other.at_.size());
  for (std::size_t i = 0; i < other.at_.size(); ++i) at_[i] = std::max(at_[i], other.at_[i]);
}

bool Order::on_host(const Span& span) const { return at(program_.buffers, span.buffer).kind != MemoryKind::kDevice; }
bool Order::pageable(const Span& span) const { return at(program_.buffers, span.buffer).kind == MemoryKind::kPageable; }

bool Order::waits_first(const Step& step) const {
  return step.kind == Kind::kCopy && on_host(step.reads[0]) && on_host(step.writes[0]);
}

bool Order::is_op(Kind kind) const { return kind >= Kind::kKernel && kind <= Kind::kWait; }

std::vector<Order::Access> Order::accesses(const Step& step) const {
  std::vector<Access> result;
  const bool host = step.kind == Kind::kHostRead || step.kind == Kind::kHostWrite || waits_first(step);
  const auto add = [&](const std::vector<Span>& spans, bool write) {
    for (const Span& span : spans)
      // Pageable memory is read at the call: staged, or the call returns when it has been read.
      result.push_back({span, write, host || (step.kind == Kind::kCopy && !write && pageable(span))});
  };
  if (step.kind == Kind::kLaunch) {
    for (const Step& node : at(program_.plans, step.plan).nodes) add(node.reads, false), add(node.writes, true);
  }
  add(step.reads, false);
  add(step.writes, true);
  return result;
}

Clock Order::clock_at(int stream, std::uint32_t index) const {
  return index == 0 ? Clock() : at(clocks_, stream)[index - 1];
}

// The legacy stream ends when all blocking streams of its device have ended (rules 9, 10, 24).
Clock Order::end_of(int stream, const Known& known) const {
  const StreamSpec& spec = program_.streams[static_cast<std::size_t>(stream)];
  Clock clock = clock_at(stream, known.issued[stream]);
  if (spec.form != StreamSpec::Form::kLegacy) return clock;
  for (std::size_t other = 0; other < program_.streams.size(); ++other) {
    const StreamSpec& its = program_.streams[other];
    if (its.device != spec.device || (!its.blocking() && its.form != StreamSpec::Form::kLegacy)) continue;
    clock.join(clock_at(static_cast<int>(other), known.issued[static_cast<int>(other)]));
  }
  return clock;
}

// What the op, issued now, comes after.
Clock Order::issue_clock(const Step& step) const {
  const Known& known = threads_[static_cast<std::size_t>(step.thread)];
  const StreamSpec& spec = program_.streams[static_cast<std::size_t>(step.stream)];
  Clock clock = end_of(step.stream, known);
  clock.join(known.done);
  if (spec.blocking() && step.kind != Kind::kWait) {  // on an H200 a wait alone was seen to take no edge
    for (std::size_t other = 0; other < program_.streams.size(); ++other) {
      const StreamSpec& its = program_.streams[other];
      if (its.device == spec.device && its.form == StreamSpec::Form::kLegacy)
        clock.join(clock_at(static_cast<int>(other), known.issued[static_cast<int>(other)]));
    }
  }
  if (step.kind == Kind::kWait && at(events_, step.event)) clock.join(*at(events_, step.event));
  if (step.kind == Kind::kLaunch) clock.join(at(plans_, step.plan));
  return clock;
}

std::optional<Conflict> Order::conflict(const Step& step) const {
  const std::vector<Access> list = accesses(step);
  if (list.empty()) return std::nullopt;
  const Known& known = threads_[static_cast<std::size_t>(step.thread)];
  Clock by_host = known.done;
  Clock by_stream;
  if (waits_first(step)) by_host.join(end_of(step.stream, known));
  else if (step.stream >= 0) by_stream = issue_clock(step);
  for (const Access& access : list) {
    const Clock& clock = access.by_host ? by_host : by_stream;
    for (int i = 0; i < access.span.pages; ++i) {
      const Page& page = at(pages_, access.span.buffer)[static_cast<std::size_t>(access.span.page + i)];
      if (page.write.index > clock[page.write.chain]) return page.write;
      if (!access.write) continue;
      for (const Conflict& read : page.reads) {
        if (read.index > clock[read.chain]) return read;
      }
    }
  }
  return std::nullopt;
}

// Remembers the accesses of the step; `clock` is its op's, if it has one.
void Order::note(const Step& step, const Clock& clock) {
  const std::size_t thread = static_cast<std::size_t>(step.thread);
  const int chain = step.stream >= 0 ? chain_of_stream(step.stream) : 0;
  for (const Access& access : accesses(step)) {
    Conflict mine{chain, clock[chain]};
    if (access.by_host) {
      mine = {step.thread, ++host_index_[thread]};
      threads_[thread].done.set(step.thread, mine.index);
    }
    for (int i = 0; i < access.span.pages; ++i) {
      Page& page = slot(pages_, access.span.buffer)[static_cast<std::size_t>(access.span.page + i)];
      if (access.write) {
        page.write = mine;
        page.reads.clear();
      } else {
        page.reads.push_back(mine);
      }
    }
  }
}

void Order::apply(const Step& step) {
  Known& known = threads_[static_cast<std::size_t>(step.thread)];
  if (step.kind == Kind::kWait && !at(events_, step.event)) return;  // rule 52: not even a barrier in the legacy stream
  if (waits_first(step)) known.done.join(end_of(step.stream, known));
  if (waits_first(step) || step.kind == Kind::kHostRead || step.kind == Kind::kHostWrite) return note(step, {});
  if (is_op(step.kind)) {
    Clock clock = issue_clock(step);
    std::vector<Clock>& ops = slot(clocks_, step.stream);
    const auto index = static_cast<std::uint32_t>(ops.size() + 1);
    clock.set(chain_of_stream(step.stream), index);
    ops.push_back(clock);
    known.issued.set(step.stream, index);
    if (step.kind == Kind::kRecord) slot(events_, step.event) = clock;
    if (step.kind == Kind::kLaunch) slot(plans_, step.plan) = clock;
    note(step, clock);
    if (step.kind == Kind::kCopy && pageable(step.writes[0])) known.done.join(clock);  // it holds the host
    return;
  }
  switch (step.kind) {
    case Kind::kSync: known.done.join(end_of(step.stream, known)); break;
    case Kind::kSyncEvent:
      if (at(events_, step.event)) known.done.join(*at(events_, step.event));
      break;
    case Kind::kSyncDevice:
      for (std::size_t s = 0; s < program_.streams.size(); ++s) {
        if (program_.streams[s].device == step.device)
          known.done.join(clock_at(static_cast<int>(s), known.issued[static_cast<int>(s)]));
      }
      break;
    case Kind::kPublish: slot(handoffs_, step.handoff) = known; break;
    case Kind::kTake:
      known.done.join(at(handoffs_, step.handoff).done);
      known.issued.join(at(handoffs_, step.handoff).issued);
      break;
    default: break;
  }
}

std::optional<std::size_t> first_race(const Program& program) {
  Order order(program);
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (order.conflict(program.steps[i])) return i;
    order.apply(program.steps[i]);
  }
  return std::nullopt;
}

}  // namespace slip::stress
