// Analysis: why each op of a trace started when it did, where engines stood idle and why, and which ops made the run as
// long as it was. All times are those of the trace, recorded or simulated.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slip/figures.hpp"
#include "slip/trace.hpp"

namespace slip {

inline constexpr std::uint32_t kNoSpan = ~std::uint32_t{0};

// What an op waited for last.
enum class Cause : std::uint8_t {
  kUnknown,     // nothing in the trace explains it
  kHost,        // the host: it started as soon as it was submitted
  kDependency,  // an op that it had to follow: the one before it in its stream, or one that its stream waits for
  kQueue,       // it was ready, and behind another stream's op in a shared hardware queue
  kEngine,      // it was ready, and its engine was busy
  kPeer,        // another rank had not arrived
};
inline constexpr std::size_t kCauses = 6;
const char* cause_name(Cause cause);

// Why a span started when it did.
struct Start {
  Cause cause = Cause::kUnknown;
  std::uint32_t after = kNoSpan;  // the span that it waited for last: ended last, stood ahead, or kept the engine
  Picos ready = 0;                // when it was submitted and all that it had to follow had ended
};

// One engine of one device, from the first start in the trace to the last end.
struct EngineTime {
  std::uint32_t device = 0;
  Engine engine = Engine::kNone;
  Picos busy = 0;
  std::array<Picos, kCauses> idle{};  // before an op, by what that op was waiting for meanwhile
  Picos done = 0;                     // idle after the engine's last op
  Picos idle_for(Cause cause) const { return idle[static_cast<std::size_t>(cause)]; }
};

// Indices are those of the spans analysed.
struct Analysis {
  std::vector<Start> starts;            // by span
  std::vector<Picos> slack;             // by span: how much later it could have ended without a longer run
  std::vector<std::uint32_t> critical;  // the critical path, from the first op to the one that ended last
  std::vector<EngineTime> engines;      // by device, then engine; those that ran something
};

Analysis analyse(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
