#include "backend/sim/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <typeinfo>

#include "base/slab.hpp"
#include "runtime/backend.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

bool flag_reached(const Command& command) {
  // acquire: ops after the wait see everything that was written before the flag.
  return runtime::ends_wait(__atomic_load_n(command.flag, __ATOMIC_ACQUIRE), command.value);
}

Ring<SimStream*>* fifo_of(SimStream& stream, const Command& command) {
  if (command.fifo == Fifo::kNone) return nullptr;
  auto& queue = stream.device->queues[static_cast<std::size_t>(stream.queue)];
  return &queue[static_cast<std::size_t>(command.fifo)];
}

void inherit_failure(SimStream& stream, const Command& command) {
  // A wait with a name is an implicit wait of the allocator: it orders the streams, but does not propagate failures.
  if (command.name || !command.target->failure.set()) return;
  runtime::Failure failure = command.target->failure.value();
  if (failure.position > command.amount) return;
  failure.text +=
      fmt::format("; {} waited for {}", runtime::stream_text(stream), runtime::stream_text(*command.target));
  failure.position = stream.commands.head() + 1;
  runtime::fail_stream(stream, std::move(failure));
}

// The list of waiters is sorted by position, so that complete() visits only the waiters that it releases.
void wait_on(SimStream& stream, SimStream& target, std::uint64_t position) {
  SimStream* before = target.last_waiter;
  while (before && before->waiting_for > position) before = before->wait_before;
  stream.waiting_on = &target;
  stream.waiting_for = position;
  stream.wait_before = before;
  stream.wait_after = before ? before->wait_after : target.first_waiter;
  (before ? before->wait_after : target.first_waiter) = &stream;
  (stream.wait_after ? stream.wait_after->wait_before : target.last_waiter) = &stream;
}

void stop_waiting(SimStream& stream) {
  SimStream& target = *stream.waiting_on;
  (stream.wait_before ? stream.wait_before->wait_after : target.first_waiter) = stream.wait_after;
  (stream.wait_after ? stream.wait_after->wait_before : target.last_waiter) = stream.wait_before;
  stream.waiting_on = stream.wait_before = stream.wait_after = nullptr;
}

// Reports to observers the dependencies that the legacy stream's barrier adds before the next command of this stream.
void notify_barriers(SimStream& stream) {
  SimDevice& device = *stream.device;
  Record record{.kind = RecordKind::kBarrier, .device = device.id, .stream = stream.last_id};
  record.position = stream.commands.tail() + 1;
  if (stream.is_legacy) {
    for (SimStream* other : device.streams) {
      if (!other->is_blocking || other->notified_position == other->commands.tail()) continue;
      other->notified_position = record.other_position = other->commands.tail();
      record.other_stream = other->last_id;
      runtime::notify(record, stream.audience);
    }
  } else if (stream.is_blocking && stream.notified_epoch != device.legacy_issued) {
    stream.notified_epoch = device.legacy_issued;
    record.other_stream = device.legacy->last_id;
    record.other_position = device.legacy_end;
    runtime::notify(record, stream.audience);
  }
}

// Whether the command must wait for work on the other side of the legacy stream's barrier (rules 3-10). A blocking
// stream is then added to SimDevice::barred, whose streams leave_epoch() makes runnable.
bool behind_barrier(SimStream& stream, const Command& command) {
  SimDevice& device = *stream.device;
  if (command.kind == OpKind::kAlloc) return false;
  if (stream.is_legacy) {
    const std::uint64_t before = command.soft ? command.epoch : command.epoch - 1;
    return before >= device.pending.head() && device.pending[before] != 0;
  }
  if (!stream.is_blocking || device.legacy_done >= command.epoch) return false;
  if (!stream.barred) {
    stream.barred = true;
    device.barred.push_back(&stream);
  }
  return true;
}

}  // namespace

Machine::Machine(const Description& description, std::span<runtime::DeviceCore* const> cores, Performer& performer)
    : description_(description),
      performer_(performer),
      engines_(description_, devices_, timers_, performer, static_cast<int>(cores.size())) {
  for (runtime::DeviceCore* core : cores) {
    SimDevice& device = devices_.emplace_back();
    device.core = core;
    device.id = core->id;
    device.index = static_cast<int>(devices_.size() - 1);
    device.depth = core->options.queue_depth > 0 ? core->options.queue_depth : 4096;
    const int queues = core->options.max_connections > 0 ? core->options.max_connections : description.queues;
    device.queues.resize(static_cast<std::size_t>(queues));
    device.pending.push(0);
    if (description.compute.copy_slowdown_ppm > 0) {
      device.full_rate = kPpm + description.compute.copy_slowdown_ppm;
      device.slow_rate = kPpm;
    }
  }
}

SimStream& Machine::open_stream(SimDevice& device, const runtime::StreamSpec& spec) {
  SimStream* stream = nullptr;
  if (device.idle.empty()) {
    stream = base::Slab<SimStream>::take();
    device.streams.push_back(stream);
  } else {
    stream = device.idle.back();
    device.idle.pop_back();
  }
  stream->machine.store(this, std::memory_order_release);
  stream->device = &device;
  stream->is_legacy = spec.legacy;
  stream->is_blocking = spec.flags == StreamFlags::kBlocking && !spec.legacy;
  stream->is_wire = spec.wire;
  stream->closing = stream->closed = stream->foreign_reached = false;
  stream->priority = spec.priority;  // here, too, because SimWires opens streams without the runtime
  stream->queue = spec.wire ? -1 : static_cast<std::int32_t>(device.next_queue++ % device.queues.size());
  stream->last_fifo = Fifo::kCompute;
  stream->notified_epoch = 0;  // the first command is ordered after all legacy commands issued so far
  stream->notified_position = stream->commands.tail();
  if (spec.legacy) device.legacy = stream;
  return *stream;
}

void Machine::close_stream(SimStream& stream) {
  stream.closed = true;
  stream.id.store(0, std::memory_order_release);
  if (stream.commands.empty()) stream.device->idle.push_back(&stream);
  else stream.closing = true;  // complete() of the last command adds it to `idle`
}

void Machine::close_device(SimDevice& device) {
  device.core = nullptr;
  for (SimStream* stream : device.streams) {
    stream->closed = true;
    stream->id.store(0, std::memory_order_relaxed);
    stream->device_id.store(0, std::memory_order_relaxed);
    stream->core = nullptr;
    stream->machine.store(nullptr, std::memory_order_release);
  }
  const bool drained =
      std::ranges::all_of(device.streams, [](const SimStream* stream) { return stream->commands.empty(); });
  if (!drained) return;  // this happens only if the process exits: the streams are not reused
  // A drained stream may still be in `runnable_` or `held_`. Remove it from both, because a new stream reuses the
  // state.
  Ring<SimStream*> others;
  for (; !runnable_.empty(); runnable_.pop()) {
    SimStream* stream = runnable_.front();
    if (stream->device == &device) stream->runnable = false;
    else others.push(stream);
  }
  std::swap(runnable_, others);
  std::erase_if(held_, [&](SimStream* stream) { return stream->device == &device && !(stream->held = false); });
  for (SimStream* stream : device.streams) {
    stream->device = stream->at = nullptr;
    stream->barred = stream->foreign_reached = stream->closing = false;
    stream->commands.shrink();
    base::Slab<SimStream>::give(stream);
  }
  device.streams.clear();
  device.idle.clear();
  device.barred.clear();
  device.legacy = nullptr;
}

std::uint64_t Machine::enqueue(SimStream& stream, Command command) {
  SimDevice& device = *stream.device;
  // The legacy stream's barrier does not order allocations. They are commands only so that observers see them.
  if (runtime::observed() && command.kind != OpKind::kAlloc) [[unlikely]]
    notify_barriers(stream);
  if (stream.is_legacy) {
    if (!command.soft) device.pending.push(0), ++device.legacy_issued;
    command.epoch = device.legacy_issued;
  } else if (stream.is_blocking) {
    command.epoch = device.legacy_issued;
    ++device.pending[command.epoch];
  }
  if (command.fifo == Fifo::kLast) command.fifo = stream.last_fifo;
  if (stream.is_wire) command.fifo = Fifo::kNone;
  if (command.fifo != Fifo::kNone) {
    stream.last_fifo = command.fifo;
    fifo_of(stream, command)->push(&stream);
  }
  const bool first = stream.commands.empty();
  stream.commands.push(command);
  if (stream.is_legacy && !command.soft) device.legacy_end = stream.commands.tail();
  if (first) timers_.set(stream.timer, command.issued);
  return stream.commands.tail();
}

bool Machine::step(Picos limit) {
  if (!runnable_.empty()) {
    SimStream& stream = *runnable_.front();
    runnable_.pop();
    stream.runnable = false;
    advance(stream);
    return true;
  }
  if (timers_.next() > now()) {
    if (engines_.start_ready()) return true;
    engines_.settle_links();
    if (timers_.next() > limit || timers_.empty()) return false;
    timers_.advance_to(timers_.next());
  }
  SimStream& stream = *timers_.pop().stream;
  if (stream.stage != Stage::kIdle) {
    if (!engines_.end_stage(stream)) return true;
    complete(stream);
  }
  advance(stream);  // if its stage was kIdle, the timer was the issue time of its next command
  return true;
}

bool Machine::poll_held() {
  bool any = false;
  std::erase_if(held_, [&](SimStream* stream) {
    if (!stream->commands.empty()) {
      const Command& command = stream->commands.front();
      if (command.kind == OpKind::kWait) return false;  // World calls release()
      const bool ready =
          command.kind == OpKind::kExchange ? command.payload->exchange->can_advance() : resolved(*stream, command);
      if (!ready) return false;
    }
    stream->held = false;
    make_runnable(*stream);
    any = true;
    return true;
  });
  return any;
}

std::vector<SimStream*> Machine::held_by(OpKind kind) const {
  std::vector<SimStream*> result;
  for (SimStream* stream : held_) {
    if (!stream->commands.empty() && stream->commands.front().kind == kind) result.push_back(stream);
  }
  return result;
}

void Machine::release(SimStream& stream) {
  stream.foreign_reached = true;
  std::erase(held_, &stream);
  stream.held = false;
  make_runnable(stream);
}

void Machine::fault(SimDevice& device, const runtime::Failure& failure) {
  for (SimStream* stream : device.streams) {
    runtime::Failure own = failure;
    own.position = stream->done.load(std::memory_order_relaxed) + 1;
    stream->failure.put(std::move(own));  // a stream of another device that waits for this one fails, too
    make_runnable(*stream);
  }
}

// --- Dispatch: commands leave their hardware queues (docs/semantics.md, rules 3-13, 54, 57, 92-94). ---

// Starts all commands of this stream that can start. If the stream is blocked, the end of the cause makes it runnable
// again: its running command, other commands ahead in its FIFO, the awaited point or barrier, or its timer.
void Machine::advance(SimStream& stream) {
  if (stream.stage == Stage::kExchange) continue_exchange(stream);
  if (stream.stage == Stage::kIdle && stream.timer.place != Timer::kIdle) timers_.cancel(stream.timer);
  while (stream.stage == Stage::kIdle && !stream.commands.empty()) {
    if (!start_next(stream)) return;
  }
}

bool Machine::start_next(SimStream& stream) {
  const Command& command = stream.commands.front();
  if (command.issued > now()) {
    timers_.set(stream.timer, command.issued);
    return false;
  }
  const runtime::DeviceCore* core = stream.device->core;
  const bool lost = !core || core->fault.set();
  if (!lost && behind_barrier(stream, command)) return false;
  Ring<SimStream*>* fifo = fifo_of(stream, command);
  if (fifo && fifo->front() != &stream) return false;
  const bool dead = lost || stream.failure.set();
  const bool exchanges = command.kind == OpKind::kExchange;
  if (!dead && !(exchanges ? exchange_started(stream) : resolved(stream, command))) return false;
  if (fifo) {
    fifo->pop();
    if (!fifo->empty()) make_runnable(*fifo->front());
  }
  if (exchanges) {
    stream.stage = Stage::kExchange;
    stream.at = stream.device;
    stream.started = stream.commands.front().payload->first_tried;
    continue_exchange(stream);
  } else if (!dead) {
    begin(stream, command);
  } else {
    if (stream.waiting_on) stop_waiting(stream);
    complete(stream);
  }
  return true;
}

// Whether the point or flag that the command waits for is reached. If not, the stream is registered as a waiter.
bool Machine::resolved(SimStream& stream, const Command& command) {
  if (command.kind == OpKind::kWait) return point_reached(stream, command);
  if (command.kind != OpKind::kWaitValue || flag_reached(command)) return true;
  hold(stream);
  return false;
}

// A point of another World or backend has no virtual time in this World. World polls it, and the point counts as
// reached at the virtual time of the poll that finds it reached.
bool Machine::point_reached(SimStream& stream, const Command& command) {
  if (typeid(*command.target) == typeid(SimStream)) {
    auto& target = static_cast<SimStream&>(*command.target);
    // acquire: pairs with complete() in another World.
    if (target.done.load(std::memory_order_acquire) >= command.amount) return true;
    if (target.machine.load(std::memory_order_acquire) == this) {
      if (!stream.waiting_on) wait_on(stream, target, command.amount);
      return false;
    }
  }
  if (stream.foreign_reached) {
    stream.foreign_reached = false;
    return true;
  }
  hold(stream);
  return false;
}

void Machine::begin(SimStream& stream, const Command& command) {
  stream.at = stream.device;
  stream.started = now();
  stream.hop = 0;
  switch (command.kind) {
    case OpKind::kKernel:
    case OpKind::kFill: return engines_.queue_compute(stream);
    case OpKind::kCopy: return engines_.queue_copy(stream);
    case OpKind::kHost: return engines_.queue_callback(stream);
    case OpKind::kWait: inherit_failure(stream, command); break;
    case OpKind::kWriteValue:
      // release: a thread that sees the flag sees everything written before it.
      __atomic_store_n(command.flag, command.value, __ATOMIC_RELEASE);
      poll_held();
      break;
    default: break;
  }
  complete(stream);
}

// Advances the exchange. Returns whether it has begun to move data, so that its command leaves the FIFO. The Performer
// runs without the lock. Meanwhile other threads may add commands, which invalidates references to commands.
// Afterwards, other waiting streams may be able to continue.
bool Machine::exchange_started(SimStream& stream) {
  Payload& payload = *stream.commands.front().payload;
  runtime::Exchange& exchange = *payload.exchange;
  if (payload.first_tried < 0) payload.first_tried = now();
  const bool moves = performer_.advance(exchange) || exchange.moves();
  if (!moves) hold(stream);
  poll_held();
  return moves;
}

void Machine::continue_exchange(SimStream& stream) {
  const runtime::DeviceCore* core = stream.device->core;
  const bool dead = !core || core->fault.set() || stream.failure.set();
  if (dead || performer_.advance(*stream.commands.front().payload->exchange)) return end_exchange(stream);
  hold(stream);
  poll_held();
}

void Machine::end_exchange(SimStream& stream) {
  const runtime::DeviceCore* core = stream.device->core;
  const bool lost = core && core->fault.set();
  const Command command = stream.commands.front();
  if (lost || stream.failure.set()) {
    const runtime::Failure cause = lost ? core->fault.value() : stream.failure.value();
    performer_.finish(stream, *command.payload, command.name, &cause);
  } else if (core) {  // null: the device is closed, which with work left happens only if the process exits
    if (runtime::observed_by(stream.audience)) [[unlikely]]
      engines_.notify_run(stream);
    performer_.finish(stream, *command.payload, command.name, nullptr);
  }
  complete(stream);
  poll_held();
}

// Removes the first command of the stream, which is done or skipped, and makes the streams that waited for it runnable.
void Machine::complete(SimStream& stream) {
  Command& command = stream.commands.front();
  if (command.kind == OpKind::kRecord && command.stamp) {
    command.stamp->set(now());
    command.stamp->release();
  }
  if (command.payload) performer_.recycle(*command.payload);
  command.issued = now();
  stream.stage = Stage::kIdle;
  const std::uint64_t epoch = command.epoch;
  const bool counts = !command.soft;
  stream.commands.pop();
  stream.done.store(stream.commands.head(), std::memory_order_release);  // release: see point_reached
  if (counts) leave_epoch(stream, epoch);
  while (stream.first_waiter && stream.first_waiter->waiting_for <= stream.commands.head()) {
    SimStream& waiter = *stream.first_waiter;
    stop_waiting(waiter);
    make_runnable(waiter);
  }
  if (stream.closing && stream.commands.empty()) {
    stream.closing = false;
    stream.device->idle.push_back(&stream);
  }
}

void Machine::leave_epoch(SimStream& stream, std::uint64_t epoch) {
  SimDevice& device = *stream.device;
  if (stream.is_legacy) {
    device.legacy_done = epoch;
    while (device.pending.head() < epoch) device.pending.pop();
    for (SimStream* waiting : device.barred) {
      waiting->barred = false;
      make_runnable(*waiting);
    }
    device.barred.clear();
  } else if (stream.is_blocking && epoch >= device.pending.head()) {
    if (--device.pending[epoch] == 0 && !device.legacy->commands.empty()) make_runnable(*device.legacy);
  }
}

void Machine::hold(SimStream& stream) {
  if (stream.held) return;
  stream.held = true;
  held_.push_back(&stream);
}

}  // namespace slip::sim
