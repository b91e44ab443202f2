// Engines: compute with a width, copy engines, the callback thread. What is ready is served by readiness; only kernels
// look at priority first, and only copy engines at the queue they served last (rules 46-50, 75, 79, 82, 83).
#include <algorithm>

#include "backend/sim/machine.hpp"
#include "base/thread.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

// For the heap functions, whose top is the greatest: the most urgent, then the one ready first.
bool less_urgent(const WaitingKernel& a, const WaitingKernel& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.order > b.order;
}

// How much of the compute engine the stream's op holds.
std::uint32_t width_of(const SimStream& stream) {
  const Command& command = stream.commands[stream.commands.head()];
  return command.kind == OpKind::kCopy && command.way != Way::kNone ? kPpm : command.value;
}

}  // namespace

void Machine::mark_dirty(SimDevice& device) {
  if (device.dirty) return;
  device.dirty = true;
  dirty_.push_back(&device);
}

// Of an exchange, which has a small part of the device for itself: it does not wait for kernels, and slows them as
// copies do.
void Machine::start_beside(SimStream& stream) {
  stream.stage = Stage::kBeside;
  copies_beside(*stream.at, +1);
  timers_.set(stream.timer, after(now_, static_cast<Picos>(stream.commands.front().amount)));
}

void Machine::ask_compute(SimStream& stream) {
  if (stream.is_wire && stream.commands.front().way == Way::kNone) return start_beside(stream);
  SimDevice& device = *stream.at;
  stream.stage = Stage::kWaiting;
  device.waiting.push_back({stream.rank, ++ready_order_, &stream});
  std::push_heap(device.waiting.begin(), device.waiting.end(), less_urgent);
  mark_dirty(device);
}

void Machine::ask_copy(SimStream& stream) {
  const Command& command = stream.commands.front();
  if (command.way == Way::kNone) return ask_compute(stream);  // within the device
  if (command.way == Way::kPeer) return start_copy(stream, *command.route);
  const bool in = command.way == Way::kIn || stream.hop == 1;
  stream.at = &device(in ? command.to : command.from);
  if (description_.copies.engines == 0) return ask_compute(stream);
  stream.stage = Stage::kWaiting;
  stream.at->copy[in || description_.copies.engines == 1 ? 0 : 1].waiting.push(&stream);
  mark_dirty(*stream.at);
}

// Kernels that wait are taken in order: one that does not fit holds those behind it, so that a wide one is not starved.
void Machine::start_engines(SimDevice& device) {
  while (!device.waiting.empty() && width_of(*device.waiting.front().stream) <= kPpm - device.used_ppm)
    start_compute(device);
  for (SerialEngine& engine : device.copy) {
    if (engine.busy || engine.waiting.empty()) continue;
    SimStream& stream = take_copy(device, engine);
    engine.busy = true;
    start_copy(stream, route_of(stream));
  }
  if (!device.callback.busy && !device.callback.waiting.empty()) {
    SimStream& stream = *device.callback.waiting.front();
    device.callback.waiting.pop();
    device.callback.busy = true;
    start_callback(stream);
  }
}

void Machine::start_compute(SimDevice& device) {
  std::pop_heap(device.waiting.begin(), device.waiting.end(), less_urgent);
  SimStream& stream = *device.waiting.back().stream;
  device.waiting.pop_back();
  device.used_ppm += width_of(stream);
  const Command& command = stream.commands.front();
  if (command.way != Way::kNone) return start_copy(stream, route_of(stream));  // no copy engine: rule 47
  stream.stage = Stage::kCompute;
  stream.started = now_;
  stream.running = static_cast<std::uint32_t>(device.running.size());
  device.running.push_back(&stream);
  if (device.running.size() == 1) kernels_beside(device);
  const std::uint64_t rate = device.copies > 0 ? device.slow_rate : device.full_rate;
  const U128 work = U128{command.amount} * device.full_rate;
  stream.finish = device.progress + U128{static_cast<std::uint64_t>(now_ - device.progress_at)} * rate + work;
  timers_.set(stream.timer, after(now_, divide_up(work, rate)));
  perform(stream);
}

// The hardware queue that the stream's copy came from, if it is one of this device.
const HardwareQueue* Machine::queue_of(const SimStream& stream, const SimDevice& device) {
  if (stream.queue < 0 || stream.device != &device) return nullptr;
  return &device.queues[static_cast<std::size_t>(stream.queue)];
}

// The first copy of the queue that the engine served until now, else the one that was ready first.
SimStream& Machine::take_copy(SimDevice& device, SerialEngine& engine) const {
  Ring<SimStream*>& waiting = engine.waiting;
  std::uint64_t chosen = waiting.head();
  if (engine.served && engine.freed == now_) {
    while (chosen != waiting.tail() && queue_of(*waiting[chosen], device) != engine.served) ++chosen;
    if (chosen == waiting.tail()) chosen = waiting.head();
  }
  SimStream* stream = waiting[chosen];
  for (; chosen != waiting.head(); --chosen) waiting[chosen] = waiting[chosen - 1];
  waiting.pop();
  return *stream;
}

void Machine::start_copy(SimStream& stream, const Route& route) {
  stream.started = now_;
  touch_memory(stream, +1);
  if (route.latency > 0) {
    stream.stage = Stage::kLatency;
    timers_.set(stream.timer, after(now_, route.latency));
  } else {
    start_flow(stream);
  }
  if (stream.hop == 0) perform(stream);
}

void Machine::start_flow(SimStream& stream) {
  const Command& command = stream.commands.front();
  stream.stage = Stage::kFlow;
  links_.start(stream.flow, route_of(stream).path, command.amount, now_);
  if (description_.copies.kernel_slowdown_ppm > 0) touch_flow(stream, +1);
}

void Machine::start_callback(SimStream& stream) {
  stream.stage = Stage::kCallback;
  stream.started = now_;
  const auto told = static_cast<Picos>(stream.commands.front().amount);
  timers_.set(stream.timer, after(now_, told > 0 ? told : description_.host.callback));
  perform(stream);
}

void Machine::stage_ended(SimStream& stream) {
  if (stream.stage == Stage::kLatency) return start_flow(stream);
  if (observed_by(stream.audience) && !stream.is_wire) [[unlikely]]
    tell_run(stream);
  if (stream.stage == Stage::kFlow) {
    end_copy(stream);
    if (stream.commands.front().way == Way::kStaged && stream.hop == 0) {
      stream.hop = 1;
      return ask_copy(stream);
    }
  } else if (stream.stage == Stage::kCompute) {
    end_compute(stream);
  } else if (stream.stage == Stage::kBeside) {
    copies_beside(*stream.at, -1);
  } else {
    stream.device->callback.busy = false;
    mark_dirty(*stream.device);
  }
  complete(stream);
  advance(stream);
}

void Machine::end_compute(SimStream& stream) {
  SimDevice& device = *stream.at;
  device.used_ppm -= width_of(stream);
  device.running.back()->running = stream.running;
  device.running[stream.running] = device.running.back();
  device.running.pop_back();
  if (device.running.empty()) kernels_beside(device);
  mark_dirty(device);
}

void Machine::end_copy(SimStream& stream) {
  const Command& command = stream.commands.front();
  links_.stop(stream.flow);
  if (description_.copies.kernel_slowdown_ppm > 0) touch_flow(stream, -1);
  touch_memory(stream, -1);
  if (command.way == Way::kPeer) return;
  const bool in = command.way == Way::kIn || stream.hop == 1;
  if (description_.copies.engines == 0) {
    stream.at->used_ppm -= kPpm;
  } else {
    SerialEngine& engine = stream.at->copy[in || description_.copies.engines == 1 ? 0 : 1];
    engine.busy = false;
    engine.served = queue_of(stream, *stream.at);
    engine.freed = now_;
  }
  mark_dirty(*stream.at);
}

const Route& Machine::route_of(const SimStream& stream) const {
  const Command& command = stream.commands[stream.commands.head()];
  if (command.way == Way::kPeer) return *command.route;
  const bool in = command.way == Way::kIn || stream.hop == 1;
  return topology_.host(in ? command.to : command.from, in, command.pageable);
}

// A copy beside slows the kernels of the devices whose memory it reads or writes.
void Machine::touch_memory(SimStream& stream, int change) {
  const Command& command = stream.commands.front();
  if (command.way != Way::kPeer) return copies_beside(*stream.at, change);
  copies_beside(device(command.from), change);
  copies_beside(device(command.to), change);
}

void Machine::copies_beside(SimDevice& device, int change) {
  const bool before = device.copies > 0;
  device.copies += change;
  const bool slow = device.copies > 0;
  if (before == slow || device.full_rate == device.slow_rate) return;
  const std::uint64_t old_rate = before ? device.slow_rate : device.full_rate;
  device.progress += U128{static_cast<std::uint64_t>(now_ - device.progress_at)} * old_rate;
  device.progress_at = now_;
  const std::uint64_t rate = slow ? device.slow_rate : device.full_rate;
  for (SimStream* stream : device.running) {
    // A kernel that ends in this very instant may be past its end by the rounding of a picosecond.
    const U128 left = stream->finish > device.progress ? stream->finish - device.progress : 0;
    timers_.set(stream->timer, after(now_, divide_up(left, rate)));
  }
}

// And kernels slow the copies whose bytes move into or out of their device's memory. The links settle at the end of the
// instant, so a kernel that follows another at once changes nothing.
void Machine::touch_flow(SimStream& stream, int change) {
  const auto touch = [&](SimDevice& device) {
    if (change > 0) device.flowing.push_back(&stream);
    else std::erase(device.flowing, &stream);
  };
  const Command& command = stream.commands.front();
  touch(command.way == Way::kPeer ? device(command.from) : *stream.at);
  if (command.way == Way::kPeer) touch(device(command.to));
  if (change > 0) kernels_beside(stream);
}

void Machine::kernels_beside(SimDevice& device) {
  for (SimStream* stream : device.flowing) kernels_beside(*stream);
}

void Machine::kernels_beside(SimStream& stream) {
  const Command& command = stream.commands.front();
  const bool peer = command.way == Way::kPeer;
  links_.slow(stream.flow, peer ? !device(command.from).running.empty() || !device(command.to).running.empty()
                                : !stream.at->running.empty());
}

// Functions take effect when their op starts. What its stream or device lost meanwhile does not run (rule 81).
void Machine::perform(SimStream& stream) {
  const Command& command = stream.commands.front();
  const DeviceCore* core = stream.device->core;
  if (!command.payload || !core || core->fault.set() || stream.failure.set()) return;
  performer_.perform(stream, *command.payload, command.name);
}

void Machine::tell_run(SimStream& stream) const {
  const Command& command = stream.commands.front();
  const bool second = command.way == Way::kStaged && stream.hop == 1;
  tell({.kind = RecordKind::kRun,
        .engine = second ? Engine::kCopyIn : command.engine,
        .device = stream.at->id,
        .queue = stream.queue,
        .stream = stream.last_id,
        .position = stream.commands.head() + 1,
        .thread = thread_index(),
        .started = stream.started,
        .ended = now_,
        .name = command.name},
       stream.audience);
}

}  // namespace slip::sim
