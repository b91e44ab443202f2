// Why ops started when they did.
//
// An op starts when the host has submitted it, what it follows has ended, it has come to the front of its hardware
// queue, and its engine has room. The last of these is the reason of its start, and the time from then to the start is
// its latency.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "watch/analysis/engine_use.hpp"
#include "watch/analysis/op_graph.hpp"

namespace slip {

// Before everything; far enough from the end of the numbers to be reckoned with.
inline constexpr Picos kNever = std::numeric_limits<Picos>::min() / 4;

// Of one span that ran.
struct StartFacts {
  Picos host = kNever;        // submitted, and the least time passed that ever lay between submission and start
  Picos dependency = kNever;  // what it follows had ended
  Picos queue = kNever;       // nothing was ahead in its queue; kNever: nothing held it there
  Picos reason = 0;           // the last of all
  std::uint32_t dependency_on = kNoSpan;
  std::uint32_t host_after = kNoSpan;  // what the host had waited for when it was late with this op
  std::uint32_t room_after = kNoSpan;  // who had kept the engine, if it was ready before
  std::uint32_t ahead = kNoSpan;       // who held it in the queue
};

struct StartTable {
  std::vector<StartReason> starts;  // by span
  std::vector<StartFacts> facts;    // by span
  std::vector<Picos> node_end;      // by node of the graph: when it and all that it follows had ended
};

StartTable find_starts(const OpGraph& graph, std::span<const TraceSpan> spans, std::span<const EngineUse> engines);

}  // namespace slip
