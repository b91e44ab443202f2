#include "slip/figures.hpp"

#include <algorithm>
#include <map>

#include "watch/analysis/engine_use.hpp"

namespace slip {
namespace {

// The busy intervals of one device, and the lower bound of its run time.
struct DeviceUse {
  std::vector<watch::Interval> compute, copy, communication;
  Picos bound = 0;
};

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
