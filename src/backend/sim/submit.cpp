// What an op becomes on the way into the machine: its cost, its engine, its queue and its way over the links.
#include <fmt/format.h>

#include <algorithm>

#include "backend/sim/arithmetic.hpp"
#include "backend/sim/memory.hpp"
#include "backend/sim/world.hpp"
#include "base/thread.hpp"
#include "runtime/bookkeeping.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

// Records that need no command: the point is the last command. On an H200 they hold no queue either. In the legacy
// stream a record is a barrier (rule 9) and so a command; in a blocking stream it is one while legacy work is pending,
// which it comes after (rule 3). With an observer it is one also when that work is done in virtual time: the edge is
// told with a command, and what is recorded after it must differ from what was before. It costs the same.
bool is_plain_record(const Op& op, const SimStream& stream) {
  if (op.kind != OpKind::kRecord || op.event || stream.is_legacy) return false;
  const SimDevice& device = *stream.device;
  const bool is_untold = observed() && stream.told_epoch != device.legacy_issued;
  const bool behind_legacy = stream.is_blocking && (device.legacy_done < device.legacy_issued || is_untold);
  return !behind_legacy || is_bookkeeping(op);
}

// A thread may get here with a reference that was good when it looked, before another thread destroyed the stream. What
// it submits must not be queued: the state is drained or waits to be, and then becomes another stream, with another
// queue and another place among the legacy barriers. REQUIRES: the world's lock.
void require_open(const SimStream& stream, Here here) {
  if (stream.closed) [[unlikely]]
    throw Error(Code::kInvalidHandle, fmt::format("stream {} was destroyed", stream.last_id), here);
}

}  // namespace

std::uint64_t World::submit(SimStream& stream, const Op& op) {
  require_supported(op, stream);
  Functions finished;
  Lock lock(mutex_);
  require_open(stream, op.here);
  if (stream.is_wire) return machine_.enqueue(stream, wire_command_for(stream, op));
  if (is_plain_record(op, stream)) {
    if (!is_bookkeeping(op)) spend(description_.host.record);
    return stream.commands.tail();
  }
  while (stream.commands.size() >= stream.device->depth) {
    const Target room[] = {{&stream, stream.commands.tail() + 1 - stream.device->depth}};
    const Picos asked = clock();
    await(lock, room, 0);
    clocks_[thread_index()] = std::max(asked, ended(room));
    require_open(stream, op.here);  // the lock was free meanwhile
  }
  Command command = command_for(stream, op);
  command.issued = spend(is_bookkeeping(op) || is_allocation_mark(op) ? 0 : host_cost(op));
  finished.swap(finished_);
  const std::uint64_t position = machine_.enqueue(stream, command);
  tell_submitted(position);
  return position;
}

void World::require_supported(const Op& op, const SimStream& stream) const {
  if (op.address)
    throw Error(Code::kUnsupported, "the sim device allocates in stream order through the runtime's pool", op.here);
  if (op.kind == OpKind::kKernel && !op.kernel->cpu && stream.device->core->options.run_functions)
    throw Error(
        Code::kUnsupported,
        fmt::format("kernel '{}' has no cpu function, which the sim device runs; give it one, or open the device "
                    "with run_functions = false",
                    op.kernel->name.text()),
        op.here);
}

Picos World::host_cost(const Op& op) const {
  const HostDescription& host = description_.host;
  switch (op.kind) {
    case OpKind::kKernel: return host.launch;
    case OpKind::kCopy: return host.copy;
    case OpKind::kFill: return host.fill;
    case OpKind::kHost: return host.function;
    case OpKind::kRecord: return op.event ? host.timed_record : host.record;
    case OpKind::kWait: return host.wait;
    case OpKind::kExchange: return host.launch;
    default: return host.value;
  }
}

Command World::command_for(SimStream& stream, const Op& op) {
  Command command;
  command.kind = op.kind;
  command.engine = op.engine;
  command.name = op.name;
  switch (op.kind) {
    case OpKind::kKernel: describe_compute(command, op, op.cost.bytes); break;
    case OpKind::kFill: describe_compute(command, op, op.writes[0].bytes); break;
    case OpKind::kCopy: describe_copy(command, stream, op); break;
    case OpKind::kHost:
      command.lane = Lane::kLast;
      command.amount = static_cast<std::uint64_t>(std::clamp<Picos>(op.cost.time, 0, kNever));
      break;
    case OpKind::kRecord:
      command.soft = is_bookkeeping(op);  // of the legacy stream: others have none
      command.stamp = static_cast<Stamp*>(op.event);
      if (!command.stamp) break;
      command.lane = Lane::kLast;
      command.stamp->retain();
      break;
    case OpKind::kWait:
      command.target = op.point.stream;
      command.amount = op.point.position;
      break;
    case OpKind::kExchange: command.lane = Lane::kCompute; break;
    case OpKind::kAlloc: command.soft = stream.is_legacy; break;
    default:
      command.lane = Lane::kLast;
      command.value = op.value;
      const Range& word = op.kind == OpKind::kWaitValue ? op.reads[0] : op.writes[0];
      command.word = reinterpret_cast<std::uint32_t*>(address(word));
      if (word.block->kind == MemoryKind::kDevice) make_accessible(command.word);
      break;
  }
  command.payload = payload_for(stream, op);
  return command;
}

// It is issued at once: an exchange is a kernel that is launched already.
Command World::wire_command_for(SimStream& stream, const Op& op) {
  Command command = command_for(stream, op);
  if (command.lane == Lane::kCompute)
    command.amount -= std::min(command.amount, static_cast<std::uint64_t>(description_.compute.launch));
  command.issued = machine_.now();
  return command;
}

// Kernels, fills and copies within the device.
void World::describe_compute(Command& command, const Op& op, std::uint64_t bytes) const {
  command.lane = Lane::kCompute;
  command.engine = Engine::kCompute;
  command.value = width_ppm(op.cost.width);
  command.amount = static_cast<std::uint64_t>(kernel_time(description_.compute, op.cost, bytes));
}

void World::describe_copy(Command& command, SimStream& stream, const Op& op) {
  const Range& to = op.writes[0];
  const Range& from = op.reads[0];
  const int source = device_of(from, stream);
  const int destination = device_of(to, stream);
  if (source >= 0 && source == destination)
    return describe_compute(command, op, 2 * to.bytes);  // reads and writes them
  command.amount = to.bytes;
  command.pageable = to.block->kind == MemoryKind::kPageable || from.block->kind == MemoryKind::kPageable;
  command.from = static_cast<std::uint16_t>(std::max(source, 0));
  command.to = static_cast<std::uint16_t>(std::max(destination, 0));
  if (source >= 0 && destination >= 0) {
    command.route = machine_.topology().peer(source, destination);
    command.way = command.route ? Way::kPeer : Way::kStaged;
    command.engine = Engine::kCopyOut;
  } else if (destination >= 0) {
    command.way = Way::kIn;
    command.engine = Engine::kCopyIn;
  } else {  // also memory of other worlds on both sides: it is as good as the host's
    if (source < 0) command.from = static_cast<std::uint16_t>(stream.device->index);
    command.way = Way::kOut;
    command.engine = Engine::kCopyOut;
  }
  command.lane = command.engine == Engine::kCopyIn ? Lane::kIn : Lane::kOut;
}

// Which device of this world has the memory; -1: the host, or something outside.
int World::device_of(const Range& range, const SimStream& stream) const {
  if (range.block->kind != MemoryKind::kDevice) return -1;
  if (range.block->core == stream.device->core) [[likely]]
    return stream.device->index;
  const std::uint32_t number =
      range.block->core->id - first_id_;  // wraps for older devices, which are not of this world
  return number < index_by_id_.size() ? index_by_id_[number] : -1;
}

Payload* World::payload_for(const SimStream& stream, const Op& op) {
  const bool runs = op.kind <= OpKind::kHost && stream.device->core->options.run_functions;
  if (op.kind != OpKind::kExchange && (!runs || stream.is_wire)) return nullptr;
  if (idle_payloads_.empty()) {
    payloads_.push_back(std::make_unique<Payload>());
    idle_payloads_.push_back(payloads_.back().get());
  }
  Payload& payload = *idle_payloads_.back();
  idle_payloads_.pop_back();
  fill_payload(payload, op);
  return &payload;
}

}  // namespace slip::sim
