// analyse(): explains the times of a trace. It finds why each op started when it did, why engines were idle, and which
// ops form the critical path. All times are those of the trace, recorded or simulated.
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

// What an op waited for last before it started.
enum class StartCause : std::uint8_t {
  kUnknown,     // the trace does not explain it
  kHost,        // the host submitted it late, because of the call itself or of earlier work or waits of the host
  kDependency,  // an earlier op of its stream, or an op of another stream that its stream waits for
  kQueue,       // it was ready, but behind another stream's op in a shared hardware queue
  kEngine,      // it was ready, but its engine was busy
};
inline constexpr std::size_t kStartCauses = 5;
const char* start_cause_name(StartCause cause);

// Why a span started when it did.
struct StartReason {
  StartCause cause = StartCause::kUnknown;
  // The op that it waited for last. kDependency: the last dependency to end. kQueue: the op ahead in the queue.
  // kEngine: the op on the engine. kHost: the op that the host had waited for. With kUnknown it is the latest of these,
  // although it ended long before.
  std::uint32_t after = kNoSpan;
  Picos ready = 0;  // when it had been submitted and all its dependencies had ended
  Picos idle = 0;   // how long its engine had been idle when it started
};

// Busy and idle time of one engine of one device, from the first start in the trace to the last end.
struct EngineTime {
  std::uint32_t device = 0;
  Engine engine = Engine::kNone;
  std::uint64_t ops = 0;
  Picos sum = 0;  // the ops' durations added up; ops that overlap count several times
  Picos busy = 0;
  std::array<Picos, kStartCauses> idle{};  // idle before an op, by the cause that delayed that op
  Picos done = 0;                          // idle after the engine's last op
  Picos idle_for(StartCause cause) const { return idle[static_cast<std::size_t>(cause)]; }
};

// Indices refer to the spans passed to analyse().
struct Analysis {
  std::vector<StartReason> starts;  // by span
  std::vector<Picos> slack;         // by span: how much later it could have ended without lengthening the run
  // The critical path, from its first op to the op that ended last. Its first op was delayed by the host alone.
  std::vector<std::uint32_t> critical;
  std::vector<EngineTime> engines;  // by device, then engine; engines that ran ops, without kNone
};

// REQUIRES: `spans` is trace.spans(). A reason explains a start if the op started at most 50 us after it. That is the
// longest launch delay of the supported devices. For an op whose submission is not in the trace the limit is 2 us. A
// trace without submissions, such as one of another program, never has kHost.
Analysis analyse(const TraceData& trace, std::span<const TraceSpan> spans);

}  // namespace slip
