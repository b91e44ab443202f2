#include "slip/figures.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace slip {
namespace {

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
      if (running[i] > 0) busy[i] += stretch, some = true;
    }
    if (some) any += stretch;
    if (!runs(Engine::kCopyIn) && !runs(Engine::kCopyOut)) return;
    copy += stretch;
    if (runs(Engine::kCompute)) overlapped += stretch;
  }
};

Sweep sweep(std::vector<Edge>& edges) {
  std::sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) { return a.at < b.at; });
  Sweep result;
  std::array<int, kEngines> running{};
  Picos last = edges.empty() ? 0 : edges.front().at;
  for (const Edge& edge : edges) {
    result.add(edge.at - last, running);
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
    device.sum[engine] += span.ended - span.started;
    for (std::vector<Edge>* edges : {&device.edges, &all}) {
      edges->push_back({span.started, +1, engine});
      edges->push_back({span.ended, -1, engine});
    }
  }
  for (auto& [id, device] : devices) {
    const Sweep swept = sweep(device.edges);
    for (std::size_t i = 0; i < kEngines; ++i) {
      result.busy[i] += swept.busy[i];
      result.sum[i] += device.sum[i];
    }
    result.copy += swept.copy;
    result.overlapped += swept.overlapped;
    result.bound = std::max(result.bound, bound_of(device.sum));
  }
  result.total = last - first;
  result.from_queued = last - std::min(first, queued);
  result.idle = result.total - sweep(all).any;
  result.exposed = result.copy - result.overlapped;
  return result;
}

}  // namespace slip
