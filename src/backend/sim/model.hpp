// The parts of a simulated device: its streams with their commands, hardware queues and engines. Plain data;
// machine.hpp says how it moves. Guarded by the world's mutex.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "backend/sim/links.hpp"
#include "backend/sim/payload.hpp"
#include "backend/sim/ring.hpp"
#include "backend/sim/timers.hpp"
#include "backend/sim/topology.hpp"
#include "runtime/core.hpp"
#include "runtime/stamp.hpp"

namespace slip::sim {

class Machine;
struct SimDevice;

// Which of a hardware queue's lanes a command stands in. On an H200 with one connection the engines' commands were seen
// not to hold each other back: only what goes to the same engine does. A wait stands in no lane, it belongs to the
// command behind it; timed records, host functions and stream memory operations stand where their stream was last.
enum class Lane : std::uint8_t { kCompute, kIn, kOut, kLast, kNone };
inline constexpr std::size_t kLanes = 3;

// How bytes go.
enum class Way : std::uint8_t {
  kNone,    // not a copy over links
  kIn,      // host to device
  kOut,     // device to host
  kPeer,    // device to device over their links
  kStaged,  // device to host to device: out of one, then into the other (rule 75)
};

struct Command {  // NOLINT(cppcoreguidelines-pro-type-member-init): one member of the union is enough
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  Lane lane = Lane::kNone;
  Way way = Way::kNone;
  std::uint32_t value = 0;         // compute: width in ppm; word: the value
  std::uint16_t from = 0, to = 0;  // copies: devices
  bool pageable = false;
  bool soft = false;         // legacy: waits for the blocking streams, but they do not wait for it
  Picos issued = 0;          // and, once it is done, when it ended
  std::uint64_t amount = 0;  // compute: picoseconds at full rate; copies: bytes; kWait: the position
  std::uint64_t epoch = 0;   // see SimDevice::pending
  Name name = {};
  union {
    StreamState* target = nullptr;  // kWait
    std::uint32_t* word;            // kWaitValue, kWriteValue
    const Route* route;             // kPeer
    Stamp* stamp;                   // kRecord, counted
  };
  Payload* payload = nullptr;  // the function to run, if any
};

// Where the op of a stream is.
enum class Stage : std::uint8_t { kIdle, kWaiting, kCompute, kBeside, kCallback, kLatency, kFlow, kExchange };

struct SimStream : StreamState {
  SimStream() { timer.stream = flow.stream = this; }

  // Life. `machine` is read by other worlds: a wait asks whose stream it waits for.
  std::atomic<Machine*> machine{nullptr};
  SimDevice* device = nullptr;
  bool is_legacy = false, is_blocking = false, closing = false;
  bool closed = true;    // nothing may be submitted any more
  bool is_wire = false;  // see StreamSpec
  int rank = 0;          // priority: lower first
  std::int32_t queue = 0;
  Lane last_lane = Lane::kCompute;

  // Commands, numbered from 0: number n is position n+1. Positions go on from one life to the next.
  Ring<Command> commands;
  std::atomic<std::uint64_t> done{0};  // all positions up to it; also read by other worlds

  // The op under way.
  Stage stage = Stage::kIdle;
  std::uint8_t hop = 0;     // kStaged: 0 out, 1 in
  SimDevice* at = nullptr;  // whose engine holds it
  Picos started = 0;
  U128 finish = 0;            // compute: in SimDevice::progress
  std::uint32_t running = 0;  // compute: index in SimDevice::running
  Flow flow;
  Timer timer;  // the end of the stage, or the issue of the next command

  // Why the next command does not start.
  bool runnable = false;         // to be looked at in this instant
  bool barred = false;           // in SimDevice::barred
  bool held = false;             // in Machine::held_: waits for a word or another world
  bool foreign_reached = false;  // the point in another world is reached
  SimStream* waiting_on = nullptr;
  std::uint64_t waiting_for = 0;
  SimStream *wait_before = nullptr, *wait_after = nullptr;    // neighbours in that stream's list
  SimStream *first_waiter = nullptr, *last_waiter = nullptr;  // who waits for this one, by position

  // What observers were told of the legacy stream's edges.
  std::uint64_t told_epoch = 0, told_position = 0;
};

// A hardware queue: the streams whose commands stand in it, once for each command, in each of its lanes.
using HardwareQueue = std::array<Ring<SimStream*>, kLanes>;

// An engine that serves one op at a time, in the order in which they became ready. A copy engine goes on with the
// hardware queue that it serves while a copy of that queue is ready at the instant when the last one ends: on an H200
// copies back to back are not interrupted by another stream's, whatever the priorities; a kernel between them lets the
// others in (rules 48-50).
struct SerialEngine {
  Ring<SimStream*> waiting;
  bool busy = false;
  const HardwareQueue* served = nullptr;  // the queue of the last op; null: none, or one that stands in no queue
  Picos freed = -1;                       // when that op ended
};

struct WaitingKernel {
  int rank;
  std::uint64_t order;
  SimStream* stream;
};

struct SimDevice {
  DeviceCore* core = nullptr;  // null: closed
  std::uint32_t id = 0;
  int index = 0;
  bool dirty = false;  // in Machine::dirty_
  std::size_t depth = 0;

  // Streams, closed ones too until they are drained and used again.
  std::vector<SimStream*> streams, idle;
  SimStream* legacy = nullptr;

  std::vector<HardwareQueue> queues;
  std::uint32_t next_queue = 0;

  // The legacy stream's commands cut the time of the blocking streams into epochs: pending[e] counts the commands of
  // blocking streams that came after e legacy commands and are not done. Legacy command e+1 waits until it is 0, and a
  // command of epoch e waits for legacy command e.
  Ring<std::uint64_t> pending;
  std::uint64_t legacy_issued = 0, legacy_done = 0;
  std::uint64_t legacy_end = 0;    // position of the last one, for observers
  std::vector<SimStream*> barred;  // blocking streams that wait for the legacy one

  // Compute: kernels run side by side while their widths fit. `progress` is the work that a kernel running since time 0
  // would have done, in picoseconds x full_rate; copies beside slow it down.
  std::uint32_t used_ppm = 0;
  std::vector<WaitingKernel> waiting;  // a heap
  std::vector<SimStream*> running;
  U128 progress = 0;
  Picos progress_at = 0;
  std::uint64_t full_rate = 1, slow_rate = 1;
  int copies = 0;                   // that touch this device's memory now
  std::vector<SimStream*> flowing;  // those of them whose bytes move, if kernels slow them

  std::array<SerialEngine, 2> copy;  // in, out
  SerialEngine callback;
};

}  // namespace slip::sim
