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
  kHost,        // the host, which submitted it late: it was its call, or what the host did or waited for before
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
  // What it waited for last: the op that ended last (kDependency), stood ahead (kQueue) or kept the engine (kEngine),
  // or that the host had waited for (kHost); of kUnknown the last of all these, though it was over long before.
  std::uint32_t after = kNoSpan;
  Picos ready = 0;  // when it was submitted and all that it had to follow had ended
  Picos idle = 0;   // how long its engine had stood idle until it started
};

// One engine of one device, from the first start in the trace to the last end.
struct EngineTime {
  std::uint32_t device = 0;
  Engine engine = Engine::kNone;
  std::uint64_t ops = 0;
  Picos sum = 0;  // of durations
  Picos busy = 0;
  std::array<Picos, kCauses> idle{};  // before an op, by what that op was waiting for meanwhile
  Picos done = 0;                     // idle after the engine's last op
  Picos idle_for(Cause cause) const { return idle[static_cast<std::size_t>(cause)]; }
};

// Indices are those of the spans analysed.
struct Analysis {
  std::vector<Start> starts;  // by span
  std::vector<Picos> slack;   // by span: how much later it could have ended without a longer run
  // The critical path, from its first op to the one that ended last. It begins where the host was late by itself.
  std::vector<std::uint32_t> critical;
  std::vector<EngineTime> engines;  // by device, then engine; those that ran something, kNone aside
};

// `spans` are those of trace.spans(). A start counts as explained if it comes within 50 us of its reason, which is the
// longest that the devices take; of an op whose submission is not in the trace, within 2 us. Without submissions, as in
// traces of other programs, the host is never named.
Analysis analyse(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
