#include "backend/sim/engines.hpp"

#include <algorithm>

#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

// Order of the heap of waiting kernels. The top has the highest priority; among equal priorities it became ready first.
bool less_urgent(const WaitingKernel& a, const WaitingKernel& b) {
  return a.priority != b.priority ? a.priority > b.priority : a.order > b.order;
}

// The share of the compute engine that the first command of the stream occupies.
std::uint32_t width_of(const SimStream& stream) {
  const Command& command = stream.commands.front();
  return command.kind == OpKind::kCopy && command.direction != CopyDirection::kNone ? kPpm : command.value;
}

// Whether the copy of the stream goes to a device now. A staged copy goes out first (hop 0), then in.
bool goes_in(const SimStream& stream) {
  return stream.commands.front().direction == CopyDirection::kIn || stream.hop == 1;
}

// The hardware queue of the stream, if it belongs to this device.
const HardwareQueue* queue_of(const SimStream& stream, const SimDevice& device) {
  if (stream.queue < 0 || stream.device != &device) return nullptr;
  return &device.queues[static_cast<std::size_t>(stream.queue)];
}

// Chooses the first copy of the hardware queue that the engine has just served. If there is none, chooses the copy that
// became ready first.
SimStream& take_copy(SimDevice& device, SerialEngine& engine, Picos now) {
  Ring<SimStream*>& waiting = engine.waiting;
  std::uint64_t chosen = waiting.head();
  if (engine.served && engine.freed == now) {
    while (chosen != waiting.tail() && queue_of(*waiting[chosen], device) != engine.served) ++chosen;
    if (chosen == waiting.tail()) chosen = waiting.head();
  }
  SimStream* stream = waiting[chosen];
  for (; chosen != waiting.head(); --chosen) waiting[chosen] = waiting[chosen - 1];
  waiting.pop();
  return *stream;
}

}  // namespace

Engines::Engines(const Description& description, std::deque<SimDevice>& devices, Timers& timers, Performer& performer,
                 int device_count)
    : description_(description),
      devices_(devices),
      timers_(timers),
      performer_(performer),
      topology_(description, device_count, links_) {
  links_.set_slowdown(description.copies.kernel_slowdown_ppm);
}

void Engines::queue_compute(SimStream& stream) {
  if (stream.is_wire && stream.commands.front().direction == CopyDirection::kNone) return start_wire_kernel(stream);
  SimDevice& device = *stream.at;
  stream.stage = Stage::kWaiting;
  device.waiting.push_back({stream.priority, ++ready_order_, &stream});
  std::push_heap(device.waiting.begin(), device.waiting.end(), less_urgent);
  mark_dirty(device);
}

void Engines::queue_copy(SimStream& stream) {
  const Command& command = stream.commands.front();
  if (command.direction == CopyDirection::kNone) return queue_compute(stream);  // within the device
  if (command.direction == CopyDirection::kPeer) return start_copy(stream, *command.route);
  const bool in = goes_in(stream);
  stream.at = &device(in ? command.to : command.from);
  if (description_.copies.engines == 0) return queue_compute(stream);
  stream.stage = Stage::kWaiting;
  stream.at->copy[in || description_.copies.engines == 1 ? 0 : 1].waiting.push(&stream);
  mark_dirty(*stream.at);
}

bool Engines::start_ready() {
  if (dirty_.empty()) return false;
  starting_.swap(dirty_);
  for (SimDevice* device : starting_) {
    device->dirty = false;
    start_engines(*device);
  }
  starting_.clear();
  return true;
}

// Waiting kernels start in order. A kernel that does not fit blocks the kernels behind it, so that wide kernels do not
// starve.
void Engines::start_engines(SimDevice& device) {
  while (!device.waiting.empty() && width_of(*device.waiting.front().stream) <= kPpm - device.used_ppm)
    start_compute(device);
  for (SerialEngine& engine : device.copy) {
    if (engine.busy || engine.waiting.empty()) continue;
    SimStream& stream = take_copy(device, engine, now());
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

void Engines::start_compute(SimDevice& device) {
  std::pop_heap(device.waiting.begin(), device.waiting.end(), less_urgent);
  SimStream& stream = *device.waiting.back().stream;
  device.waiting.pop_back();
  device.used_ppm += width_of(stream);
  const Command& command = stream.commands.front();
  if (command.direction != CopyDirection::kNone)
    return start_copy(stream, route_of(stream));  // no copy engine: rule 47
  stream.stage = Stage::kCompute;
  stream.started = now();
  stream.running = static_cast<std::uint32_t>(device.running.size());
  device.running.push_back(&stream);
  if (device.running.size() == 1)
    for (SimStream* flowing : device.flowing) slow_copy(*flowing);
  const std::uint64_t rate = device.copies > 0 ? device.slow_rate : device.full_rate;
  const U128 work = U128{command.amount} * device.full_rate;
  stream.finish = device.progress + U128{static_cast<std::uint64_t>(now() - device.progress_at)} * rate + work;
  timers_.set(stream.timer, after(now(), divide_up(work, rate)));
  perform(stream);
}

void Engines::start_copy(SimStream& stream, const Route& route) {
  stream.started = now();
  touch_memory(stream, +1);
  if (route.latency > 0) {
    stream.stage = Stage::kLatency;
    timers_.set(stream.timer, after(now(), route.latency));
  } else {
    start_flow(stream);
  }
  if (stream.hop == 0) perform(stream);
}

void Engines::start_flow(SimStream& stream) {
  const Command& command = stream.commands.front();
  stream.stage = Stage::kFlow;
  links_.start(stream.flow, route_of(stream).path, command.amount, now());
  if (description_.copies.kernel_slowdown_ppm > 0) touch_flow(stream, +1);
}

void Engines::start_callback(SimStream& stream) {
  stream.stage = Stage::kCallback;
  stream.started = now();
  const auto given = static_cast<Picos>(stream.commands.front().amount);
  timers_.set(stream.timer, after(now(), given > 0 ? given : description_.host.callback));
  perform(stream);
}

bool Engines::end_stage(SimStream& stream) {
  if (stream.stage == Stage::kLatency) {
    start_flow(stream);
    return false;
  }
  if (runtime::observed_by(stream.audience) && !stream.is_wire) [[unlikely]]
    notify_run(stream);
  if (stream.stage == Stage::kFlow) {
    end_copy(stream);
    if (stream.commands.front().direction == CopyDirection::kStaged && stream.hop == 0) {
      stream.hop = 1;
      queue_copy(stream);
      return false;
    }
  } else if (stream.stage == Stage::kCompute) {
    end_compute(stream);
  } else if (stream.stage == Stage::kWireKernel) {
    count_copies(*stream.at, -1);
  } else {
    stream.device->callback.busy = false;
    mark_dirty(*stream.device);
  }
  return true;
}

void Engines::end_compute(SimStream& stream) {
  SimDevice& device = *stream.at;
  device.used_ppm -= width_of(stream);
  device.running.back()->running = stream.running;
  device.running[stream.running] = device.running.back();
  device.running.pop_back();
  if (device.running.empty())
    for (SimStream* flowing : device.flowing) slow_copy(*flowing);
  mark_dirty(device);
}

void Engines::end_copy(SimStream& stream) {
  const Command& command = stream.commands.front();
  links_.stop(stream.flow);
  if (description_.copies.kernel_slowdown_ppm > 0) touch_flow(stream, -1);
  touch_memory(stream, -1);
  if (command.direction == CopyDirection::kPeer) return;
  const bool in = goes_in(stream);
  if (description_.copies.engines == 0) {
    stream.at->used_ppm -= kPpm;
  } else {
    SerialEngine& engine = stream.at->copy[in || description_.copies.engines == 1 ? 0 : 1];
    engine.busy = false;
    engine.served = queue_of(stream, *stream.at);
    engine.freed = now();
  }
  mark_dirty(*stream.at);
}

const Route& Engines::route_of(const SimStream& stream) const {
  const Command& command = stream.commands.front();
  if (command.direction == CopyDirection::kPeer) return *command.route;
  const bool in = goes_in(stream);
  return topology_.host(in ? command.to : command.from, in, command.pageable);
}

// A copy slows concurrent kernels of the devices whose memory it reads or writes.
void Engines::touch_memory(SimStream& stream, int change) {
  const Command& command = stream.commands.front();
  if (command.direction != CopyDirection::kPeer) return count_copies(*stream.at, change);
  count_copies(device(command.from), change);
  count_copies(device(command.to), change);
}

void Engines::count_copies(SimDevice& device, int change) {
  const bool before = device.copies > 0;
  device.copies += change;
  const bool slow = device.copies > 0;
  if (before == slow || device.full_rate == device.slow_rate) return;
  const std::uint64_t old_rate = before ? device.slow_rate : device.full_rate;
  device.progress += U128{static_cast<std::uint64_t>(now() - device.progress_at)} * old_rate;
  device.progress_at = now();
  const std::uint64_t rate = slow ? device.slow_rate : device.full_rate;
  for (SimStream* stream : device.running) {
    // At the instant when a kernel ends, progress may exceed its finish, because times are rounded up to picoseconds.
    const U128 left = stream->finish > device.progress ? stream->finish - device.progress : 0;
    timers_.set(stream->timer, after(now(), divide_up(left, rate)));
  }
}

// Kernels slow down concurrent copies to and from their device's memory. The links settle only at the end of the
// instant, so nothing changes if one kernel directly follows another.
void Engines::touch_flow(SimStream& stream, int change) {
  const auto touch = [&](SimDevice& device) {
    if (change > 0) device.flowing.push_back(&stream);
    else std::erase(device.flowing, &stream);
  };
  const Command& command = stream.commands.front();
  touch(command.direction == CopyDirection::kPeer ? device(command.from) : *stream.at);
  if (command.direction == CopyDirection::kPeer) touch(device(command.to));
  if (change > 0) slow_copy(stream);
}

void Engines::slow_copy(SimStream& stream) {
  const Command& command = stream.commands.front();
  const bool peer = command.direction == CopyDirection::kPeer;
  links_.slow(stream.flow, peer ? !device(command.from).running.empty() || !device(command.to).running.empty()
                                : !stream.at->running.empty());
}

// The function of an op runs when the op starts in virtual time. It does not run if its stream or device has failed
// meanwhile (rule 81).
void Engines::perform(SimStream& stream) {
  const Command& command = stream.commands.front();
  const runtime::DeviceCore* core = stream.device->core;
  if (!command.payload || !core || core->fault.set() || stream.failure.set()) return;
  performer_.perform(stream, *command.payload, command.name);
}

void Engines::notify_run(SimStream& stream) const {
  const Command& command = stream.commands.front();
  const bool second = command.direction == CopyDirection::kStaged && stream.hop == 1;
  runtime::notify({.kind = RecordKind::kRun,
                   .engine = second ? Engine::kCopyIn : command.engine,
                   .device = stream.at->id,
                   .queue = stream.queue,
                   .stream = stream.last_id,
                   .position = stream.commands.head() + 1,
                   .started = stream.started,
                   .ended = now(),
                   .name = command.name},
                  stream.audience);
}

}  // namespace slip::sim
