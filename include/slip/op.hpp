// Op: one piece of work on a stream, as data: what it reads and writes, its engine and its cost. The verifier, the
// simulator, the backends and the trace all use this type. An Op refers to its lists and does not own them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "slip/error.hpp"
#include "slip/kernel.hpp"
#include "slip/name.hpp"
#include "slip/range.hpp"

namespace slip::runtime {
class EventState;    // the backend's part of an event
class Exchange;      // a collective, or messages, with other ranks
struct StreamState;  // the backend's part of a stream
struct PlanOps;      // a plan as backends see it
}  // namespace slip::runtime

namespace slip {

// Real or virtual time in integer picoseconds. 2^63 ps are 106 days.
using Picos = std::int64_t;

// The work of an op. 0 means unknown. `time`, if given, is a measured duration and overrides the rest.
struct Cost {
  std::uint64_t bytes = 0;  // read from and written to device memory
  std::uint64_t flops = 0;
  double width = 1.0;  // fraction of the device that the kernel can occupy, in (0, 1]
  Picos time = 0;
};

enum class OpKind : std::uint8_t {
  kKernel,
  kCopy,        // writes[0] <- reads[0]
  kFill,        // writes[0] <- value
  kHost,        // a host function
  kWaitValue,   // blocks the stream until the 32-bit flag reads[0] >= value
  kWriteValue,  // flag writes[0] <- value
  kRecord,      // an event record
  kWait,        // blocks the stream until `point` is reached
  kAlloc,       // stream-ordered allocation: *address <- memory of `bytes`
  kFree,        // stream-ordered free of `address`
  kPlan,        // a whole plan, on devices that compile plans
  kExchange,    // a collective, or messages, with other ranks
};

enum class Engine : std::uint8_t {
  kNone,
  kCompute,
  kCopyIn,
  kCopyOut,
  kHost,
  kCommunication,  // runs any number of ops at once: with a limit, ops of ranks that wait for each other could deadlock
};

// Sizes of tables indexed by OpKind and Engine.
inline constexpr std::size_t kOpKinds = static_cast<std::size_t>(OpKind::kExchange) + 1;
inline constexpr std::size_t kEngines = static_cast<std::size_t>(Engine::kCommunication) + 1;

const char* op_kind_name(OpKind kind);
const char* engine_name(Engine engine);

// A point in a stream: after all ops up to `position`.
struct StreamPoint {
  runtime::StreamState* stream = nullptr;
  std::uint64_t position = 0;
};

struct Op {
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  bool opaque = false;       // it declared no ranges, so nothing can be proven about it
  bool launch_edge = false;  // kWait: implicit, of a plan's launch or a copy; observers get it as RecordKind::kBarrier
  std::uint32_t value = 0;   // kFill, kWaitValue, kWriteValue
  const Kernel* kernel = nullptr;
  Name name = {};
  Here here = {};
  Ranges reads = {};
  Ranges writes = {};
  Scalars scalars = {};
  Cost cost = {};
  std::function<void()>* host = nullptr;  // kHost; moved from when submitted
  StreamPoint point = {};                 // kWait
  // kWait: the id that the point's stream had at this point; 0: its current id. If the stream was closed since then, a
  // new stream may use the same StreamState with another id.
  std::uint64_t point_stream = 0;
  runtime::EventState* event = nullptr;    // kRecord, kWait: the backend's event, or null
  void** address = nullptr;                // kAlloc, kFree
  std::size_t bytes = 0;                   // kAlloc, kFree
  const runtime::PlanOps* plan = nullptr;  // kPlan
  runtime::Exchange* exchange = nullptr;   // kExchange
};

// The arguments of a kernel launch. `name` replaces the kernel's name in traces and errors.
struct Operands {
  Ranges reads = {};
  Ranges writes = {};
  Scalars scalars = {};
  Name name = {};
};

}  // namespace slip
