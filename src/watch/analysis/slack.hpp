// Slack: how much later each op could have ended without a longer run.
#pragma once

#include <span>
#include <vector>

#include "watch/analysis/schedule.hpp"

namespace slip {

// By span. What is submitted, waited for and run stays in its order, with its durations and latencies.
std::vector<Picos> find_slack(const OpGraph& graph, std::span<const TraceSpan> spans, const StartTable& table,
                              const Holders& holders, std::span<const std::uint32_t> order);

}  // namespace slip
