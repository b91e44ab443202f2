#include "watch/analysis/engine_use.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "slip/figures.hpp"
#include "watch/trace/containers.hpp"

namespace slip::watch {
namespace {

constexpr std::int32_t kWhole = 1'000'000;  // the width of a whole engine

// The share of its engine that an op takes, in millionths. It is an integer, so that sums do not depend on the order.
// Only kernels take less than the whole engine.
std::int32_t width_of(const TraceSpan& span) {
  if (span.kind != OpKind::kKernel || !span.submit) return kWhole;
  const double width = span.submit->cost.width;
  return width > 0.0 && width < 1.0 ? std::max(1, static_cast<std::int32_t>(width * kWhole + 0.5)) : kWhole;
}

void add_busy(EngineUse& use, const TraceSpan& span, std::uint32_t index) {
  use.ops.push_back(index);
  use.sum += span.ended - span.started;
  if (use.busy.empty() || span.started > use.busy.back().end) {
    use.busy.push_back({span.started, span.ended, index});
    return;
  }
  if (span.started < use.busy.back().end) use.serial = false;
  use.busy.back().end = std::max(use.busy.back().end, span.ended);
}

std::vector<TimeKey> ends_of(std::span<const TraceSpan> spans, const EngineUse& use) {
  std::vector<TimeKey> ends;
  ends.reserve(use.ops.size());
  for (const std::uint32_t op : use.ops) ends.push_back({spans[op].ended, op});
  sort_by_time(ends);
  return ends;
}

// For an engine that ran several ops at once: finds the op that freed the capacity for each op that had to wait.
void find_freed(std::span<const TraceSpan> spans, const EngineUse& use, const std::vector<std::int32_t>& widths,
                std::vector<std::uint32_t>& result) {
  const std::vector<TimeKey> ends = ends_of(spans, use);
  // By index in use.ops: the total width that ran just before the last end of an op before this op's start. If that end
  // and this start are the same instant, a width to which no op could be added.
  std::vector<std::int64_t> width_before(use.ops.size());
  std::int64_t max_running = kWhole, running = 0, before = 0;
  std::size_t end = 0;
  for (std::size_t i = 0; i < use.ops.size(); ++i) {
    const std::uint32_t op = use.ops[i];
    const Picos started = spans[op].started;
    for (; end < ends.size() && ends[end].at <= started && ends[end].index != op; ++end) {
      // Of several ops that end at the same instant, all ran before it.
      if (end == 0 || ends[end - 1].at != ends[end].at) before = running;
      running -= widths[ends[end].index];
    }
    // An op that starts at the instant of an end has waited for that op.
    if (end > 0) result[op] = ends[end - 1].index;
    width_before[i] = end > 0 && ends[end - 1].at == started ? std::numeric_limits<std::int64_t>::max() / 2 : before;
    running += widths[op];
    max_running = std::max(max_running, running);
  }
  for (std::size_t i = 0; i < use.ops.size(); ++i) {
    if (width_before[i] + widths[use.ops[i]] <= max_running) result[use.ops[i]] = kNoSpan;
  }
}

// The minimum time in which the engine could have run its ops. An engine that never ran two ops at once runs them one
// after the other. Other engines run them at the maximum concurrency observed, by declared width.
Picos min_time(std::span<const TraceSpan> spans, const EngineUse& use) {
  if (use.serial) return use.sum;
  const std::vector<TimeKey> ends = ends_of(spans, use);
  std::int64_t max_running = kWhole, running = 0;
  double work = 0;  // picoseconds of the whole engine
  std::size_t end = 0;
  for (const std::uint32_t op : use.ops) {
    for (; end < ends.size() && ends[end].at <= spans[op].started && ends[end].index != op; ++end)
      running -= width_of(spans[ends[end].index]);
    running += width_of(spans[op]);
    max_running = std::max(max_running, running);
    work += static_cast<double>(spans[op].ended - spans[op].started) * width_of(spans[op]);
  }
  // Rounding must not raise the result above the time in which the engine actually ran its ops.
  return std::min(static_cast<Picos>(work / static_cast<double>(max_running)), total_time(use.busy));
}

std::vector<Interval> union_of_two(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  std::vector<Interval> result;
  result.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result),
             [](const Interval& x, const Interval& y) { return x.begin < y.begin; });
  std::size_t kept = 0;
  for (const Interval& interval : result) {
    if (kept > 0 && interval.begin <= result[kept - 1].end)
      result[kept - 1].end = std::max(result[kept - 1].end, interval.end);
    else result[kept++] = interval;
  }
  result.resize(kept);
  return result;
}

// A device may have one copy engine for both directions. Then copies of the two directions never overlap, and one may
// start at the instant when the other ends.
void find_waits_for_other_direction(std::span<const TraceSpan> spans, const EngineUse& in, const EngineUse& out,
                                    std::vector<std::uint32_t>& result) {
  if (!in.serial || !out.serial || overlap_time(in.busy, out.busy) > 0) return;
  const auto look = [&](const EngineUse& use, const EngineUse& other) {
    std::size_t next = 0;
    for (const std::uint32_t op : use.ops) {
      while (next < other.ops.size() && spans[other.ops[next]].ended <= spans[op].started) ++next;
      if (next == 0) continue;
      const std::uint32_t before = other.ops[next - 1];
      if (spans[before].ended == spans[op].started &&
          (result[op] == kNoSpan || spans[result[op]].ended < spans[op].started))
        result[op] = before;
    }
  };
  look(in, out);
  look(out, in);
}

}  // namespace

std::vector<EngineUse> engine_use(std::span<const TraceSpan> spans) {
  std::map<std::pair<std::uint32_t, Engine>, std::vector<TimeKey>> starts;
  std::vector<TimeKey>* last = nullptr;
  std::pair<std::uint32_t, Engine> last_key;
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (!spans[i].run || spans[i].annotation) continue;
    const std::pair key(spans[i].device, spans[i].engine);
    if (!last || key != last_key) last = &starts[key], last_key = key;
    last->push_back({spans[i].started, i});
  }
  std::vector<EngineUse> result;
  for (auto& [key, order] : starts) {
    sort_by_time(order);
    EngineUse& use = result.emplace_back();
    use.device = key.first;
    use.engine = key.second;
    use.ops.reserve(order.size());
    for (const TimeKey& start : order) add_busy(use, spans[start.index], start.index);
  }
  return result;
}

std::vector<std::uint32_t> engine_predecessors(std::span<const TraceSpan> spans, std::span<const EngineUse> engines) {
  std::vector<std::uint32_t> result(spans.size(), kNoSpan);
  std::vector<std::int32_t> widths;
  for (const EngineUse& use : engines) {
    if (use.engine == Engine::kNone) continue;  // an op without an engine does not wait for one
    if (!use.serial) {
      // Computed for all spans in order: their submissions lie in memory in this order, which the cache favours.
      if (widths.empty()) std::transform(spans.begin(), spans.end(), std::back_inserter(widths), width_of);
      find_freed(spans, use, widths, result);
      continue;
    }
    for (std::size_t i = 1; i < use.ops.size(); ++i) result[use.ops[i]] = use.ops[i - 1];
  }
  for (std::size_t i = 1; i < engines.size(); ++i) {
    const EngineUse& in = engines[i - 1];
    const EngineUse& out = engines[i];
    if (in.device == out.device && in.engine == Engine::kCopyIn && out.engine == Engine::kCopyOut)
      find_waits_for_other_direction(spans, in, out, result);
  }
  return result;
}

std::vector<Interval> union_of(std::vector<std::vector<Interval>> lists) {
  // Merges the lists in pairs, so that each interval is copied only log2(number of lists) times.
  while (lists.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < lists.size(); i += 2) {
      std::vector<Interval> both = i + 1 < lists.size() ? union_of_two(lists[i], lists[i + 1]) : std::move(lists[i]);
      lists[kept++] = std::move(both);
    }
    lists.resize(kept);
  }
  return lists.empty() ? std::vector<Interval>() : std::move(lists.front());
}

Picos overlap_time(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  Picos shared = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const Picos begin = std::max(a[i].begin, b[j].begin);
    const Picos end = std::min(a[i].end, b[j].end);
    if (end > begin) shared += end - begin;
    if (a[i].end < b[j].end) ++i;
    else ++j;
  }
  return shared;
}

Picos total_time(const std::vector<Interval>& intervals) {
  Picos sum = 0;
  for (const Interval& interval : intervals) sum += interval.end - interval.begin;
  return sum;
}

}  // namespace slip::watch

namespace slip {
namespace {

// The busy intervals of one device, and the lower bound of its run time.
struct DeviceUse {
  std::vector<watch::Interval> compute, copy, communication;
  Picos bound = 0;
};

// Figures::bound is the longest minimum time of these engines.
bool is_bounding(Engine engine) {
  return engine == Engine::kCompute || engine == Engine::kCopyIn || engine == Engine::kCopyOut;
}

}  // namespace

Figures figures(std::span<const TraceSpan> spans) {
  Figures result;
  Picos first = 0, last = 0, queued = 0;
  for (const TraceSpan& span : spans) {
    if (!span.run || span.annotation) continue;
    const Picos issued = span.submit ? span.queued : span.started;
    first = result.ops == 0 ? span.started : std::min(first, span.started);
    last = result.ops == 0 ? span.ended : std::max(last, span.ended);
    queued = result.ops == 0 ? issued : std::min(queued, issued);
    ++result.ops;
  }
  std::map<std::uint32_t, DeviceUse> devices;
  std::vector<std::vector<watch::Interval>> all;
  for (watch::EngineUse& use : watch::engine_use(spans)) {
    DeviceUse& device = devices[use.device];
    const auto engine = static_cast<std::size_t>(use.engine);
    if (is_bounding(use.engine)) device.bound = std::max(device.bound, watch::min_time(spans, use));
    result.sum[engine] += use.sum;
    result.busy[engine] += watch::total_time(use.busy);
    if (use.engine == Engine::kCompute) device.compute = use.busy;
    if (use.engine == Engine::kCopyIn || use.engine == Engine::kCopyOut)
      device.copy = watch::union_of({std::move(device.copy), use.busy});
    if (use.engine == Engine::kCommunication) device.communication = use.busy;
    all.push_back(std::move(use.busy));
  }
  for (const auto& [id, device] : devices) {
    result.copy += watch::total_time(device.copy);
    result.overlapped += watch::overlap_time(device.copy, device.compute);
    result.communication += watch::total_time(device.communication);
    result.communication_overlapped += watch::overlap_time(device.communication, device.compute);
    result.bound = std::max(result.bound, device.bound);
  }
  result.total = last - first;
  result.from_queued = last - std::min(first, queued);
  result.idle = result.total - watch::total_time(watch::union_of(std::move(all)));
  result.exposed = result.copy - result.overlapped;
  result.communication_exposed = result.communication - result.communication_overlapped;
  return result;
}

}  // namespace slip
