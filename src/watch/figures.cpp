#include "slip/figures.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

namespace slip {
namespace {

constexpr Picos kLatest = std::numeric_limits<Picos>::max();
constexpr Picos kEarliest = std::numeric_limits<Picos>::min();

// Times of a damaged trace may be up to 2^63 picoseconds either way: what does not fit stays at the limit.
Picos plus(Picos a, Picos b) {
  Picos result = 0;
  return __builtin_add_overflow(a, b, &result) ? (b > 0 ? kLatest : kEarliest) : result;
}
Picos minus(Picos a, Picos b) {
  Picos result = 0;
  return __builtin_sub_overflow(a, b, &result) ? (b < 0 ? kLatest : kEarliest) : result;
}

// A span's start (+1) or end (-1).
struct Edge {
  Picos at;
  int change;
  std::size_t engine;
};

// What ran for how long, filled in one stretch without change after another.
struct Sweep {
  std::array<Picos, kEngines> busy{};
  Picos any = 0, copy = 0, overlapped = 0;

  void add(Picos stretch, const std::array<int, kEngines>& running) {
    const auto runs = [&running](Engine engine) { return running[static_cast<std::size_t>(engine)] > 0; };
    bool some = false;
    for (std::size_t i = 0; i < kEngines; ++i) {
      if (running[i] > 0) busy[i] = plus(busy[i], stretch), some = true;
    }
    if (some) any = plus(any, stretch);
    if (!runs(Engine::kCopyIn) && !runs(Engine::kCopyOut)) return;
    copy = plus(copy, stretch);
    if (runs(Engine::kCompute)) overlapped = plus(overlapped, stretch);
  }
};

Sweep sweep(std::vector<Edge>& edges) {
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  Sweep result;
  std::array<int, kEngines> running{};
  Picos last = edges.empty() ? 0 : edges.front().at;
  for (const Edge& edge : edges) {
    result.add(minus(edge.at, last), running);
    last = edge.at;
    running[edge.engine] += edge.change;
  }
  return result;
}

Picos bound_of(const std::array<Picos, kEngines>& sum) {
  return std::max({sum[static_cast<std::size_t>(Engine::kCompute)], sum[static_cast<std::size_t>(Engine::kCopyIn)],
                   sum[static_cast<std::size_t>(Engine::kCopyOut)]});
}

}  // namespace

Figures figures(std::span<const TraceSpan> spans) {
  Figures result;
  struct PerDevice {
    std::vector<Edge> edges;
    std::array<Picos, kEngines> sum{};
  };
  std::map<std::uint32_t, PerDevice> devices;
  std::vector<Edge> all;
  Picos first = 0, last = 0, queued = 0;
  for (const TraceSpan& span : spans) {
    if (!span.run) continue;
    const Picos issued = span.submit ? span.queued : span.started;
    first = result.ops == 0 ? span.started : std::min(first, span.started);
    last = result.ops == 0 ? span.ended : std::max(last, span.ended);
    queued = result.ops == 0 ? issued : std::min(queued, issued);
    ++result.ops;
    const auto engine = static_cast<std::size_t>(span.engine);
    PerDevice& device = devices[span.device];
    device.sum[engine] = plus(device.sum[engine], minus(span.ended, span.started));
    for (std::vector<Edge>* edges : {&device.edges, &all}) {
      edges->push_back({span.started, +1, engine});
      edges->push_back({span.ended, -1, engine});
    }
  }
  for (auto& [id, device] : devices) {
    const Sweep swept = sweep(device.edges);
    for (std::size_t i = 0; i < kEngines; ++i) {
      result.busy[i] = plus(result.busy[i], swept.busy[i]);
      result.sum[i] = plus(result.sum[i], device.sum[i]);
    }
    result.copy = plus(result.copy, swept.copy);
    result.overlapped = plus(result.overlapped, swept.overlapped);
    result.bound = std::max(result.bound, bound_of(device.sum));
  }
  result.total = minus(last, first);
  result.from_queued = minus(last, std::min(first, queued));
  result.idle = minus(result.total, sweep(all).any);
  result.exposed = minus(result.copy, result.overlapped);
  return result;
}

}  // namespace slip
