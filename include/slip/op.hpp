// Op: one piece of work on a stream, as data. It names what it reads and writes, on which engine it runs and what it
// costs; the same value is verified, simulated, run and compared. An Op refers to its lists and does not own them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "slip/error.hpp"
#include "slip/kernel.hpp"
#include "slip/name.hpp"
#include "slip/range.hpp"

namespace slip {

class EventState;    // a backend's part of an event, if it needs one
class Exchange;      // an op with other ranks
struct StreamState;  // a backend's part of a stream
struct PlanOps;      // a plan as backends see it

// Time in integer picoseconds, real or virtual. 2^63 of them are 106 days.
using Picos = std::int64_t;

// What an op asks of a device. Zero means unknown. `time`, when given, is a measured duration and overrides the rest.
struct Cost {
  std::uint64_t bytes = 0;  // moved through device memory
  std::uint64_t flops = 0;
  double width = 1.0;  // share of the device that the kernel can use, in (0, 1]
  Picos time = 0;
};

enum class OpKind : std::uint8_t {
  kKernel,
  kCopy,        // writes[0] <- reads[0]
  kFill,        // writes[0] <- value
  kHost,        // a function of the host
  kWaitValue,   // holds the stream until the word reads[0] >= value
  kWriteValue,  // word writes[0] <- value
  kRecord,      // a point in the stream
  kWait,        // holds the stream until `point` is reached
  kAlloc,       // stream-ordered allocation: *address <- memory of `bytes`
  kFree,        // stream-ordered free of `address`
  kPlan,        // a whole plan, on devices that compile plans
  kExchange,    // with other ranks: a collective
};

enum class Engine : std::uint8_t {
  kNone,
  kCompute,
  kCopyIn,
  kCopyOut,
  kHost,
  kCommunication,  // with other ranks; never a limited resource: ranks must not wait for each other through one
};

// How many there are, for tables by number.
inline constexpr std::size_t kOpKinds = static_cast<std::size_t>(OpKind::kExchange) + 1;
inline constexpr std::size_t kEngines = static_cast<std::size_t>(Engine::kCommunication) + 1;

const char* kind_name(OpKind kind);
const char* engine_name(Engine engine);

// A point in a stream: everything submitted to it up to `position`.
struct Point {
  StreamState* stream = nullptr;
  std::uint64_t position = 0;
};

struct Op {
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  bool opaque = false;       // declared no ranges: nothing can be proven about it
  bool launch_edge = false;  // kWait: ties a plan's launch to its stream, and is told as a barrier
  std::uint32_t value = 0;   // kFill, kWaitValue, kWriteValue
  const Kernel* kernel = nullptr;
  Name name = {};
  Here here = {};
  Ranges reads = {};
  Ranges writes = {};
  Scalars scalars = {};
  Cost cost = {};
  std::function<void()>* host = nullptr;  // kHost; moved from when submitted
  Point point = {};                       // kWait
  std::uint64_t point_stream = 0;  // kWait: id that the point's stream had when it was recorded; 0: its present one
  EventState* event = nullptr;     // kRecord, kWait: the backend's event, or null
  void** address = nullptr;        // kAlloc, kFree
  std::size_t bytes = 0;           // kAlloc, kFree
  const PlanOps* plan = nullptr;   // kPlan
  Exchange* exchange = nullptr;    // kExchange
};

// What a kernel launch uses. `name` overrides the kernel's own in traces and errors.
struct Operands {
  Ranges reads = {};
  Ranges writes = {};
  Scalars scalars = {};
  Name name = {};
};

}  // namespace slip
