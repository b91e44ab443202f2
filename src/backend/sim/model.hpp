// The state of simulated devices: streams with their commands, hardware queues and engines. Plain data, guarded by the
// mutex of World. Machine moves commands through the queues; Engines runs them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "backend/sim/links.hpp"
#include "backend/sim/queues.hpp"
#include "runtime/backend.hpp"
#include "runtime/core.hpp"

namespace slip::sim {

class Machine;
struct SimDevice;

// The real work of an op, which runs in addition to the virtual time that the op takes. It is a kernel's cpu function,
// a copy, a fill, a host function or an exchange. Other ops have no payload.
struct Payload {
  OpKind kind = OpKind::kKernel;
  std::uint8_t value = 0;  // kFill
  const Kernel* kernel = nullptr;
  Here here = {};
  std::vector<ArgBytes> reads = {}, writes = {};
  std::vector<Scalar> scalars = {};
  std::function<void()> host = {};
  // kExchange: Machine advances it in steps; run() ignores it.
  runtime::Exchange* exchange = nullptr;
  Picos first_tried = -1;  // when the machine first tried to advance it; below 0: not yet
};

// Which FIFO of a hardware queue a command enters. Measured on an H200 with one hardware queue
// (CUDA_DEVICE_MAX_CONNECTIONS=1): commands block only commands for the same engine, so a queue has one FIFO per
// engine. A wait, an allocation and a record without time enter none (kNone): a wait only delays the next command of
// its stream. Timed records, host functions and stream memory operations enter the FIFO that their stream used last
// (kLast).
enum class Fifo : std::uint8_t { kCompute, kIn, kOut, kLast, kNone };
inline constexpr std::size_t kFifos = 3;

enum class CopyDirection : std::uint8_t {
  kNone,    // not a copy over links
  kIn,      // host to device
  kOut,     // device to host
  kPeer,    // device to device over the links between them
  kStaged,  // device to host, then host to device (rule 75)
};

struct Command {  // NOLINT(cppcoreguidelines-pro-type-member-init): one member of the union is enough
  OpKind kind = OpKind::kKernel;
  Engine engine = Engine::kNone;
  Fifo fifo = Fifo::kNone;
  CopyDirection direction = CopyDirection::kNone;
  std::uint32_t value = 0;         // compute: width in ppm; kWaitValue, kWriteValue: the value
  std::uint16_t from = 0, to = 0;  // copies: device indices
  bool pageable = false;
  bool soft = false;  // in the legacy stream: waits for blocking streams, which do not wait for it
  Picos issued = 0;   // when the host issued it; complete() overwrites it with the time when the command ended
  // Compute: picoseconds at full rate. Copies: bytes. kHost: picoseconds; 0: HostDescription::callback. kWait: the
  // position waited for.
  std::uint64_t amount = 0;
  std::uint64_t epoch = 0;  // see SimDevice::pending
  Name name = {};
  union {
    runtime::StreamState* target = nullptr;  // kWait
    std::uint32_t* flag;                     // kWaitValue, kWriteValue
    const Route* route;                      // kPeer
    runtime::Stamp* stamp;                   // kRecord; this command holds a reference
  };
  Payload* payload = nullptr;  // the function to run, if any
};

// The state of the first command of a stream. kIdle: not started. kWaiting: it waits for an engine. kWireKernel: see
// Engines::start_wire_kernel(). kLatency, kFlow: a copy waits for the latency of its route; then its bytes move.
enum class Stage : std::uint8_t { kIdle, kWaiting, kCompute, kWireKernel, kCallback, kLatency, kFlow, kExchange };

struct SimStream : runtime::StreamState {
  SimStream() { timer.stream = flow.stream = this; }

  // `machine` is also read by other Worlds, to find out whether a stream belongs to them.
  std::atomic<Machine*> machine{nullptr};
  SimDevice* device = nullptr;
  bool is_legacy = false, is_blocking = false;
  bool closed = true;    // submissions are refused
  bool closing = false;  // closed, and its last command has not ended
  bool is_wire = false;  // see StreamSpec
  std::int32_t queue = 0;
  Fifo last_fifo = Fifo::kCompute;

  // Commands are numbered from 0: command n has position n+1. Positions continue when the state is reused for a new
  // stream.
  Ring<Command> commands;
  std::atomic<std::uint64_t> done{0};  // all positions up to it are done; also read by other Worlds

  // --- State of the first command. ---
  Stage stage = Stage::kIdle;
  std::uint8_t hop = 0;     // kStaged: 0 out, 1 in
  SimDevice* at = nullptr;  // the device whose engine it uses
  Picos started = 0;
  U128 finish = 0;            // compute: the value of SimDevice::progress at which it ends
  std::uint32_t running = 0;  // compute: index in SimDevice::running
  Flow flow;
  Timer timer;  // the end of the stage, or the issue of the next command

  // --- Why the next command does not start. ---
  bool runnable = false;         // in Machine::runnable_
  bool barred = false;           // in SimDevice::barred
  bool held = false;             // in Machine::held_: waits for something outside this simulation
  bool foreign_reached = false;  // the awaited point of another World or backend is reached
  SimStream* waiting_on = nullptr;
  std::uint64_t waiting_for = 0;
  SimStream *wait_before = nullptr, *wait_after = nullptr;    // neighbours in the list of waiters of `waiting_on`
  SimStream *first_waiter = nullptr, *last_waiter = nullptr;  // streams that wait for this one, by position

  // The barriers that were already reported to observers: this stream waits for the legacy commands of the epochs up to
  // notified_epoch; the legacy stream waits for this stream's commands up to notified_position.
  std::uint64_t notified_epoch = 0, notified_position = 0;
};

// A hardware queue: for each FIFO the streams of its commands, one entry per command.
using HardwareQueue = std::array<Ring<SimStream*>, kFifos>;

// An engine that serves one command at a time, in the order in which the commands became ready. Exception: if another
// copy of the same hardware queue is ready at the instant when a copy ends, the copy engine serves that copy next.
// Measured on an H200: copies of other streams do not interrupt back-to-back copies, whatever the priorities. A kernel
// between the copies lets other copies run (rules 48-50).
struct SerialEngine {
  Ring<SimStream*> waiting;
  bool busy = false;
  const HardwareQueue* served = nullptr;  // the queue of the last command; null: no command yet, or one without a queue
  Picos freed = -1;                       // when that command ended
};

struct WaitingKernel {
  int priority;         // lower numbers first
  std::uint64_t order;  // order in which the kernels became ready
  SimStream* stream;
};

struct SimDevice {
  runtime::DeviceCore* core = nullptr;  // null: closed
  std::uint32_t id = 0;
  int index = 0;
  bool dirty = false;     // in Engines::dirty_
  std::size_t depth = 0;  // maximum number of commands of a stream; then submit() blocks

  // `streams` also contains closed streams. `idle` contains closed and drained streams, which open_stream() reuses.
  std::vector<SimStream*> streams, idle;
  SimStream* legacy = nullptr;

  std::vector<HardwareQueue> queues;
  std::uint32_t next_queue = 0;

  // The commands of the legacy stream, except soft ones, divide those of the blocking streams into epochs. Epoch e has
  // the commands that were issued after e legacy commands, and pending[e] counts those of them that are unfinished.
  // Legacy command e+1 waits until pending[e] is 0, and a command of epoch e waits for legacy command e.
  Ring<std::uint64_t> pending;
  std::uint64_t legacy_issued = 0, legacy_done = 0;
  std::uint64_t legacy_end = 0;    // position of the last legacy command that is not soft, for observers
  std::vector<SimStream*> barred;  // blocking streams that wait for the legacy stream

  // Compute: kernels run concurrently while the sum of their widths fits. `progress` is the work, in picoseconds x
  // full_rate, that a kernel running since time 0 would have done until `progress_at`. Concurrent copies reduce its
  // rate to slow_rate.
  std::uint32_t used_ppm = 0;
  std::vector<WaitingKernel> waiting;  // a heap
  std::vector<SimStream*> running;
  U128 progress = 0;
  Picos progress_at = 0;
  std::uint64_t full_rate = 1, slow_rate = 1;
  int copies = 0;  // running copies that read or write this device's memory, and running kernels of exchanges
  // Streams of these copies, after their latency. Maintained only if kernels slow copies down.
  std::vector<SimStream*> flowing;

  std::array<SerialEngine, 2> copy;  // in, out; a device with one copy engine uses the first for both directions
  SerialEngine callback;
};

}  // namespace slip::sim
