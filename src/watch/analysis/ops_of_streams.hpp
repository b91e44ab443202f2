// OpsOfStreams: the ops of a trace by stream, to find those on both sides of a wait.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

#include "slip/race.hpp"

namespace slip {

inline OpPlace place_of(const TraceSpan& span) {
  return {span.stream, span.position, span.name.empty() ? kind_name(span.kind) : span.name, span.file, span.line};
}

class OpsOfStreams {
 public:
  explicit OpsOfStreams(std::span<const TraceSpan> spans) {
    for (const TraceSpan& span : spans) {
      if (span.submit) streams_[span.stream].push_back(&span);
    }
  }

  // The last op that a wait for the point covers, and the first op of the stream submitted after the record. Null:
  // there is none.
  const TraceSpan* last_until(std::uint64_t stream, std::uint64_t position) const {
    const std::vector<const TraceSpan*>& ops = of(stream);
    const auto later =
        std::partition_point(ops.begin(), ops.end(), [&](const TraceSpan* op) { return op->position <= position; });
    return later == ops.begin() ? nullptr : *std::prev(later);
  }
  const TraceSpan* first_after(std::uint64_t stream, std::uint64_t sequence) const {
    const std::vector<const TraceSpan*>& ops = of(stream);
    const auto first = std::partition_point(ops.begin(), ops.end(),
                                            [&](const TraceSpan* op) { return op->submit->sequence <= sequence; });
    return first == ops.end() ? nullptr : *first;
  }

 private:
  const std::vector<const TraceSpan*>& of(std::uint64_t stream) const {
    static const std::vector<const TraceSpan*> kNone;
    const auto found = streams_.find(stream);
    return found == streams_.end() ? kNone : found->second;
  }
  std::unordered_map<std::uint64_t, std::vector<const TraceSpan*>> streams_;
};

}  // namespace slip
