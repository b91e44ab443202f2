#include "watch/page/arrows.hpp"

#include <algorithm>
#include <iterator>
#include <unordered_map>

namespace slip {
namespace {

constexpr Picos kShiftFrom = 1'000'000'000'000'000;

// From the host's call to what it launched.
void add_launches(std::span<const TraceSpan> spans, std::vector<Arrow>& result) {
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t> calls;
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    if (spans[i].run && !spans[i].submit) calls.emplace(std::pair(spans[i].stream, spans[i].position), i);
  }
  for (std::uint32_t i = 0; i < spans.size(); ++i) {
    const TraceRecord* submit = spans[i].submit;
    if (!submit || !spans[i].run || submit->other_stream == 0) continue;
    const auto call = calls.find({submit->other_stream, submit->other_position});
    if (call != calls.end()) result.push_back({call->second, i, false});
  }
}

}  // namespace

std::map<std::uint32_t, Picos> clock_origins(const TraceData& trace) {
  std::map<std::uint32_t, Picos> origins;
  for (const TraceRecord& record : trace.records) {
    Picos& origin = origins.try_emplace(record.device, 0).first->second;
    for (const Picos time : {record.queued, record.started}) {
      if (time > 0) origin = origin == 0 ? time : std::min(origin, time);
    }
  }
  Picos start = 0;
  for (const auto& [device, origin] : origins) {
    if (origin >= kShiftFrom) start = start == 0 ? origin : std::min(start, origin);
  }
  for (auto& [device, origin] : origins) origin = origin >= kShiftFrom ? start : 0;
  return origins;
}

std::vector<Arrow> arrows(const TraceData& trace, std::span<const TraceSpan> spans) {
  std::unordered_map<std::uint64_t, std::vector<std::uint32_t>> streams;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].run && spans[i].submit) streams[spans[i].stream].push_back(static_cast<std::uint32_t>(i));
  }
  std::vector<Arrow> result;
  for (const TraceEdge& edge : trace.edges()) {
    const std::vector<std::uint32_t>& sources = streams[edge.from_stream];
    const std::vector<std::uint32_t>& targets = streams[edge.to_stream];
    const auto source =
        std::upper_bound(sources.begin(), sources.end(), edge.from_position,
                         [&](std::uint64_t position, std::uint32_t i) { return position < spans[i].position; });
    const auto target =
        std::upper_bound(targets.begin(), targets.end(), edge.sequence,
                         [&](std::uint64_t sequence, std::uint32_t i) { return sequence < spans[i].submit->sequence; });
    if (source == sources.begin() || target == targets.end()) continue;
    result.push_back({*std::prev(source), *target, edge.barrier});
  }
  if (trace.foreign) add_launches(spans, result);
  return result;
}

}  // namespace slip
