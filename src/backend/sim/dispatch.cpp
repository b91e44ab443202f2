// Commands leaving their hardware queues: when, in which order, and what their end sets free (rules 3-13, 54, 57,
// 92-94).
#include <fmt/format.h>

#include <algorithm>
#include <typeinfo>

#include "backend/sim/machine.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

bool word_at_least(const Command& command) {
  // acquire: what was written before the word is seen by what waits for it.
  return __atomic_load_n(command.word, __ATOMIC_ACQUIRE) >= command.value;
}

}  // namespace

// Puts the stream on the list of this instant. A list, not a call: one end may set free a chain of any length.
void Machine::poke(SimStream& stream) {
  if (stream.runnable) return;
  stream.runnable = true;
  runnable_.push(&stream);
}

// Starts what can start in this stream. Whoever holds it back pokes it again: the end of an op, the queue when the
// stream comes to its front, the point or the barrier it waits for, the clock when its next command is issued.
void Machine::advance(SimStream& stream) {
  if (stream.stage == Stage::kExchange) go_on(stream);
  if (stream.stage == Stage::kIdle && stream.timer.place != Timer::kIdle) timers_.cancel(stream.timer);
  while (stream.stage == Stage::kIdle && !stream.commands.empty()) {
    if (!start_next(stream)) return;
  }
}

bool Machine::start_next(SimStream& stream) {
  const Command& command = stream.commands.front();
  if (command.issued > now_) {
    timers_.set(stream.timer, command.issued);
    return false;
  }
  const DeviceCore* core = stream.device->core;
  const bool lost = !core || core->fault.set();
  if (!lost && behind_barrier(stream, command)) return false;
  Ring<SimStream*>* lane = lane_of(stream, command);
  if (lane && lane->front() != &stream) return false;
  const bool dead = lost || stream.failure.set();
  const bool exchanges = command.kind == OpKind::kExchange;
  if (!dead && !(exchanges ? exchange_moves(stream) : resolved(stream, command))) return false;
  if (lane) {
    lane->pop();
    if (!lane->empty()) poke(*lane->front());
  }
  if (exchanges) {
    stream.stage = Stage::kExchange;
    stream.at = stream.device;
    stream.started = stream.commands.front().payload->came;
    go_on(stream);
  } else if (!dead) {
    begin(stream, command);
  } else {
    if (stream.waiting_on) stop_waiting(stream);
    complete(stream);
  }
  return true;
}

Ring<SimStream*>* Machine::lane_of(SimStream& stream, const Command& command) {
  if (command.lane == Lane::kNone) return nullptr;
  auto& queue = stream.device->queues[static_cast<std::size_t>(stream.queue)];
  return &queue[static_cast<std::size_t>(command.lane)];
}

bool Machine::behind_barrier(SimStream& stream, const Command& command) {
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

// Whether nothing but the engine stands between the command and its start.
bool Machine::resolved(SimStream& stream, const Command& command) {
  if (command.kind == OpKind::kWait) return point_reached(stream, command);
  if (command.kind != OpKind::kWaitValue || word_at_least(command)) return true;
  hold(stream);
  return false;
}

// Of a stream that is held: whether that is over.
bool Machine::may_go_on(SimStream& stream) {
  const Command& command = stream.commands.front();
  return command.kind == OpKind::kExchange ? command.payload->exchange->can_advance() : resolved(stream, command);
}

// A point of another world or backend has no virtual time here: the World asks for it now and then, and it counts as
// reached when the answer is yes.
bool Machine::point_reached(SimStream& stream, const Command& command) {
  if (typeid(*command.target) == typeid(SimStream)) {
    auto& target = static_cast<SimStream&>(*command.target);
    // acquire: pairs with complete() in another world.
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
  stream.started = now_;
  stream.hop = 0;
  switch (command.kind) {
    case OpKind::kKernel:
    case OpKind::kFill: return ask_compute(stream);
    case OpKind::kCopy: return ask_copy(stream);
    case OpKind::kHost:
      stream.stage = Stage::kWaiting;
      stream.device->callback.waiting.push(&stream);
      return mark_dirty(*stream.device);
    case OpKind::kWait: inherit_failure(stream, command); break;
    case OpKind::kWriteValue:
      // release: who sees the word sees what was written before.
      __atomic_store_n(command.word, command.value, __ATOMIC_RELEASE);
      poll_words();
      break;
    default: break;
  }
  complete(stream);
}

// What the Performer does it does without the lock: commands may be added meanwhile, and references to them end. What
// an exchange did may let others go on.
bool Machine::exchange_moves(SimStream& stream) {
  Payload& payload = *stream.commands.front().payload;
  Exchange& exchange = *payload.exchange;
  if (payload.came < 0) payload.came = now_;
  const bool moves = performer_.advance(exchange) || exchange.moves();
  if (!moves) hold(stream);
  poll_words();
  return moves;
}

void Machine::go_on(SimStream& stream) {
  const DeviceCore* core = stream.device->core;
  const bool dead = !core || core->fault.set() || stream.failure.set();
  if (dead || performer_.advance(*stream.commands.front().payload->exchange)) return end_exchange(stream);
  hold(stream);
  poll_words();
}

void Machine::end_exchange(SimStream& stream) {
  const DeviceCore* core = stream.device->core;
  const bool lost = core && core->fault.set();
  const Command command = stream.commands.front();
  if (lost || stream.failure.set()) {
    const Failure cause = lost ? core->fault.value() : stream.failure.value();
    performer_.finish(stream, *command.payload, command.name, &cause);
  } else if (core) {  // else the process exits
    if (observed_by(stream.audience)) [[unlikely]]
      tell_run(stream);
    performer_.finish(stream, *command.payload, command.name, nullptr);
  }
  complete(stream);
  poll_words();
}

void Machine::inherit_failure(SimStream& stream, const Command& command) {
  // A named wait is the allocator's own, an implicit one: it orders, but carries no failure.
  if (command.name || !command.target->failure.set()) return;
  Failure failure = command.target->failure.value();
  if (failure.position > command.amount) return;
  failure.text += fmt::format("; stream {} waited for stream {}", stream.last_id, command.target->last_id);
  failure.position = stream.commands.head() + 1;
  fail_stream(stream, std::move(failure));
}

// The first command of the stream is done, or skipped.
void Machine::complete(SimStream& stream) {
  Command& command = stream.commands.front();
  if (command.kind == OpKind::kRecord && command.stamp) {
    command.stamp->set(now_);
    command.stamp->release();
  }
  if (command.payload) performer_.recycle(*command.payload);
  command.issued = now_;
  stream.stage = Stage::kIdle;
  const std::uint64_t epoch = command.epoch;
  const bool counts = !command.soft;
  stream.commands.pop();
  stream.done.store(stream.commands.head(), std::memory_order_release);  // release: see point_reached
  if (counts) leave_epoch(stream, epoch);
  while (stream.first_waiter && stream.first_waiter->waiting_for <= stream.commands.head()) {
    SimStream& waiter = *stream.first_waiter;
    stop_waiting(waiter);
    poke(waiter);
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
      poke(*waiting);
    }
    device.barred.clear();
  } else if (stream.is_blocking && epoch >= device.pending.head()) {
    if (--device.pending[epoch] == 0 && !device.legacy->commands.empty()) poke(*device.legacy);
  }
}

// The list is in the order of positions, so that the end of an op looks at those only whom it sets free.
void Machine::wait_on(SimStream& stream, SimStream& target, std::uint64_t position) {
  SimStream* before = target.last_waiter;
  while (before && before->waiting_for > position) before = before->wait_before;
  stream.waiting_on = &target;
  stream.waiting_for = position;
  stream.wait_before = before;
  stream.wait_after = before ? before->wait_after : target.first_waiter;
  (before ? before->wait_after : target.first_waiter) = &stream;
  (stream.wait_after ? stream.wait_after->wait_before : target.last_waiter) = &stream;
}

void Machine::stop_waiting(SimStream& stream) {
  SimStream& target = *stream.waiting_on;
  (stream.wait_before ? stream.wait_before->wait_after : target.first_waiter) = stream.wait_after;
  (stream.wait_after ? stream.wait_after->wait_before : target.last_waiter) = stream.wait_before;
  stream.waiting_on = stream.wait_before = stream.wait_after = nullptr;
}

void Machine::hold(SimStream& stream) {
  if (stream.held) return;
  stream.held = true;
  held_.push_back(&stream);
}

// Tells observers which edges the legacy stream's rule adds for the command that comes next in this stream.
void Machine::tell_barriers(SimStream& stream) {
  SimDevice& device = *stream.device;
  Record record{.kind = RecordKind::kBarrier, .device = device.id, .stream = stream.last_id};
  record.position = stream.commands.tail() + 1;
  if (stream.is_legacy) {
    for (SimStream* other : device.streams) {
      if (!other->is_blocking || other->told_position == other->commands.tail()) continue;
      other->told_position = record.other_position = other->commands.tail();
      record.other_stream = other->last_id;
      tell(record, stream.audience);
    }
  } else if (stream.is_blocking && stream.told_epoch != device.legacy_issued) {
    stream.told_epoch = device.legacy_issued;
    record.other_stream = device.legacy->last_id;
    record.other_position = device.legacy_end;
    tell(record, stream.audience);
  }
}

}  // namespace slip::sim
