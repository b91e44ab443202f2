#include "backend/sim/machine.hpp"

#include <algorithm>

#include "backend/slab.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {

Machine::Machine(const Description& description, std::span<DeviceCore* const> cores, Performer& performer)
    : description_(description), performer_(performer), topology_(description, static_cast<int>(cores.size()), links_) {
  links_.set_slowdown(description.copies.kernel_slowdown_ppm);
  for (DeviceCore* core : cores) {
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

SimStream& Machine::open_stream(SimDevice& device, const StreamSpec& spec) {
  SimStream* stream = nullptr;
  if (device.idle.empty()) {
    stream = Slab<SimStream>::take();
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
  stream->rank = spec.priority;
  stream->queue = spec.wire ? -1 : static_cast<std::int32_t>(device.next_queue++ % device.queues.size());
  stream->last_lane = Lane::kCompute;
  stream->told_epoch = 0;  // its first op comes after all legacy work issued so far
  stream->told_position = stream->commands.tail();
  if (spec.legacy) device.legacy = stream;
  return *stream;
}

void Machine::close_stream(SimStream& stream) {
  stream.closed = true;
  stream.id.store(0, std::memory_order_release);
  if (stream.commands.empty()) stream.device->idle.push_back(&stream);
  else stream.closing = true;  // complete() does it with the last command
}

void Machine::close_device(SimDevice& device) {
  device.core = nullptr;
  for (SimStream* stream : device.streams) {
    stream->closed = true;
    stream->id.store(0, std::memory_order_relaxed);
    stream->core = nullptr;
    stream->machine.store(nullptr, std::memory_order_release);
  }
  const bool drained = std::all_of(device.streams.begin(), device.streams.end(),
                                   [](const SimStream* stream) { return stream->commands.empty(); });
  if (!drained) return;  // the process exits: nobody uses them again
  // A drained stream may still stand in the list of this instant, and must not take that into its next life.
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
    Slab<SimStream>::give(stream);
  }
  device.streams.clear();
  device.idle.clear();
  device.barred.clear();
  device.legacy = nullptr;
}

std::uint64_t Machine::enqueue(SimStream& stream, Command command) {
  SimDevice& device = *stream.device;
  // An allocation comes after nothing of the legacy stream's rule; it has a place only for observers.
  if (observed() && command.kind != OpKind::kAlloc) [[unlikely]]
    tell_barriers(stream);
  if (stream.is_legacy) {
    if (!command.soft) device.pending.push(0), ++device.legacy_issued;
    command.epoch = device.legacy_issued;
  } else if (stream.is_blocking) {
    command.epoch = device.legacy_issued;
    ++device.pending[command.epoch];
  }
  if (command.lane == Lane::kLast) command.lane = stream.last_lane;
  if (stream.is_wire) command.lane = Lane::kNone;
  if (command.lane != Lane::kNone) {
    stream.last_lane = command.lane;
    lane_of(stream, command)->push(&stream);
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
  if (timers_.next() > now_) {
    if (!dirty_.empty()) {
      starting_.swap(dirty_);
      for (SimDevice* device : starting_) {
        device->dirty = false;
        start_engines(*device);
      }
      starting_.clear();
      return true;
    }
    if (!links_.settled()) {
      for (Flow* flow : links_.settle(now_)) timers_.set(flow->stream->timer, flow->end);
    }
    if (timers_.next() > limit || timers_.empty()) return false;
    now_ = timers_.next();
  }
  SimStream& stream = *timers_.pop().stream;
  if (stream.stage == Stage::kIdle) advance(stream);  // its next command is issued now
  else stage_ended(stream);
  return true;
}

bool Machine::poll_words() {
  bool any = false;
  std::erase_if(held_, [&](SimStream* stream) {
    if (!stream->commands.empty() && stream->commands.front().kind == OpKind::kWait) return false;
    const bool open = stream->commands.empty() || may_go_on(*stream);
    if (!open) return false;
    stream->held = false;
    poke(*stream);
    any = true;
    return true;
  });
  return any;
}

std::vector<Exchange*> Machine::held_exchanges() const {
  std::vector<Exchange*> result;
  for (SimStream* stream : held_) {
    if (!stream->commands.empty() && stream->commands.front().kind == OpKind::kExchange)
      result.push_back(stream->commands.front().payload->exchange);
  }
  return result;
}

std::vector<SimStream*> Machine::held_by_points() const {
  std::vector<SimStream*> result;
  for (SimStream* stream : held_) {
    if (!stream->commands.empty() && stream->commands.front().kind == OpKind::kWait) result.push_back(stream);
  }
  return result;
}

void Machine::release(SimStream& stream) {
  stream.foreign_reached = true;
  std::erase(held_, &stream);
  stream.held = false;
  poke(stream);
}

void Machine::fault(SimDevice& device, const Failure& failure) {
  for (SimStream* stream : device.streams) {
    Failure own = failure;
    own.position = stream->done.load(std::memory_order_relaxed) + 1;
    stream->failure.put(std::move(own));  // so that a stream of another device that waits for it fails too
    poke(*stream);
  }
}

}  // namespace slip::sim
