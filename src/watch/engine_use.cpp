#include "watch/engine_use.hpp"

#include <algorithm>
#include <map>

#include "watch/time_order.hpp"

namespace slip {
namespace {

constexpr std::int32_t kWhole = 1'000'000;

// In millionths, as integers: sums must not depend on the order. Only kernels share their engine.
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

// Starts and ends of an engine's ops, in order: what runs at each, and what left last.
class Room {
 public:
  Room(std::span<const TraceSpan> spans, const EngineUse& use, const std::vector<std::int32_t>& widths)
      : spans_(spans), use_(use), widths_(widths) {
    ends_.reserve(use.ops.size());
    for (const std::uint32_t op : use.ops) ends_.push_back({spans[op].ended, op});
    sort_by_time(ends_);
    sweep([&](std::uint32_t) { most_ = std::max(most_, running_); });
  }

  void find(std::vector<std::uint32_t>& result) {
    sweep([&](std::uint32_t op) {
      if (left_ == kNoSpan) return;
      const bool at_once = spans_[left_].ended == spans_[op].started;
      if (at_once || full_ + widths_[op] > most_) result[op] = left_;
    });
  }

 private:
  // Calls `started` after each start.
  template <class Started>
  void sweep(const Started& started) {
    running_ = 0, full_ = 0, left_ = kNoSpan;
    std::size_t end = 0;
    for (const std::uint32_t op : use_.ops) {
      for (; end < ends_.size() && ends_[end].at <= spans_[op].started && ends_[end].index != op; ++end) {
        // Of several that end at once, all were there before.
        if (left_ == kNoSpan || spans_[left_].ended != ends_[end].at) full_ = running_;
        left_ = ends_[end].index;
        running_ -= widths_[left_];
      }
      running_ += widths_[op];
      started(op);
    }
  }

  std::span<const TraceSpan> spans_;
  const EngineUse& use_;
  const std::vector<std::int32_t>& widths_;  // by span
  std::vector<TimeKey> ends_;
  std::int64_t most_ = kWhole, running_ = 0;
  std::int64_t full_ = 0;  // what ran just before the last end
  std::uint32_t left_ = kNoSpan;
};

std::vector<Stretch> united_pair(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
  std::vector<Stretch> result;
  result.reserve(a.size() + b.size());
  std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(result),
             [](const Stretch& x, const Stretch& y) { return x.begin < y.begin; });
  std::size_t kept = 0;
  for (const Stretch& stretch : result) {
    if (kept > 0 && stretch.begin <= result[kept - 1].end)
      result[kept - 1].end = std::max(result[kept - 1].end, stretch.end);
    else result[kept++] = stretch;
  }
  result.resize(kept);
  return result;
}

// A device may have one copy engine for both directions. Then they never run at once, and one starts in the instant in
// which the other ends.
void find_turns(std::span<const TraceSpan> spans, const EngineUse& in, const EngineUse& out,
                std::vector<std::uint32_t>& result) {
  if (!in.serial || !out.serial || shared_time(in.busy, out.busy) > 0) return;
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
    if (!spans[i].run) continue;
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

std::vector<std::uint32_t> made_room(std::span<const TraceSpan> spans, std::span<const EngineUse> engines) {
  std::vector<std::uint32_t> result(spans.size(), kNoSpan);
  std::vector<std::int32_t> widths;
  for (const EngineUse& use : engines) {
    if (!use.serial) {
      // In the order of the spans: their submissions lie in memory like that.
      if (widths.empty()) std::transform(spans.begin(), spans.end(), std::back_inserter(widths), width_of);
      Room(spans, use, widths).find(result);
      continue;
    }
    for (std::size_t i = 1; i < use.ops.size(); ++i) result[use.ops[i]] = use.ops[i - 1];
  }
  for (std::size_t i = 1; i < engines.size(); ++i) {
    const EngineUse& in = engines[i - 1];
    const EngineUse& out = engines[i];
    if (in.device == out.device && in.engine == Engine::kCopyIn && out.engine == Engine::kCopyOut)
      find_turns(spans, in, out, result);
  }
  return result;
}

std::vector<Stretch> united(std::vector<std::vector<Stretch>> lists) {
  // Two by two, so that many short lists cost no more than a few long ones.
  while (lists.size() > 1) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < lists.size(); i += 2) {
      std::vector<Stretch> both = i + 1 < lists.size() ? united_pair(lists[i], lists[i + 1]) : std::move(lists[i]);
      lists[kept++] = std::move(both);
    }
    lists.resize(kept);
  }
  return lists.empty() ? std::vector<Stretch>() : std::move(lists.front());
}

Picos shared_time(const std::vector<Stretch>& a, const std::vector<Stretch>& b) {
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

Picos time_of(const std::vector<Stretch>& stretches) {
  Picos sum = 0;
  for (const Stretch& stretch : stretches) sum += stretch.end - stretch.begin;
  return sum;
}

}  // namespace slip
