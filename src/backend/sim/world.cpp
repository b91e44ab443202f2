#include "backend/sim/world.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "backend/sim/arithmetic.hpp"
#include "base/clock.hpp"
#include "base/fail.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "runtime/exchange.hpp"
#include "runtime/observers.hpp"

namespace slip::sim {
namespace {

constexpr int kStepsPerCheck = 4096;  // machine steps between two readings of the real clock

// Whether a record needs no command, because its point is the end of the last command. (On an H200 such records enter
// no queue either.) In the legacy stream a record is a barrier (rule 9) and so a command. In a blocking stream it is a
// command while legacy work is pending, because it comes after that work (rule 3). With an observer it is a command
// even if that work is already done in virtual time. The reason: the dependency is reported with a command, and
// positions before and after it must differ. The virtual cost is the same.
bool is_plain_record(const Op& op, const SimStream& stream) {
  if (op.kind != OpKind::kRecord || op.event || stream.is_legacy) return false;
  const SimDevice& device = *stream.device;
  const bool is_unreported = runtime::observed() && stream.notified_epoch != device.legacy_issued;
  const bool behind_legacy = stream.is_blocking && (device.legacy_done < device.legacy_issued || is_unreported);
  return !behind_legacy || runtime::is_bookkeeping(op);
}

// Another thread may have destroyed the stream after the caller's reference was checked. A new stream will reuse the
// state, so nothing more may be enqueued. REQUIRES: the World's lock.
void require_open(const SimStream& stream, Here here) {
  if (stream.closed) [[unlikely]]
    runtime::raise_destroyed(&stream, stream.last_id, here);
}

void require_supported(const Op& op, const SimStream& stream) {
  if (op.address)
    throw Error(ErrorCode::kUnsupported, "the sim device allocates in stream order through the runtime's pool",
                op.here);
  if (op.kind == OpKind::kKernel && !op.kernel->cpu && stream.device->core->options.run_functions)
    base::fail(ErrorCode::kUnsupported, op.here,
               "kernel '{}' has no cpu function, which the sim device runs; give it one, or open the device "
               "with run_functions = false",
               op.kernel->name.text());
}

Picos host_cost(const Op& op, const HostDescription& host) {
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

// Kernels, fills and copies within the device.
void describe_compute(Command& command, const Op& op, std::uint64_t bytes, const ComputeDescription& compute) {
  command.fifo = Fifo::kCompute;
  command.engine = Engine::kCompute;
  command.value = width_ppm(op.cost.width);
  command.amount = static_cast<std::uint64_t>(kernel_time(compute, op.cost, bytes));
}

// Copies everything that the payload needs from `op`; moves the host function. The lists keep their capacity, because
// payloads are reused.
void fill_payload(Payload& payload, const Op& op) {
  const auto take = [](std::vector<ArgBytes>& pieces, const Ranges& ranges) {
    pieces.clear();
    for (const Range& range : ranges) pieces.push_back({runtime::address(range), range.bytes});
  };
  payload.kind = op.kind;
  payload.value = static_cast<std::uint8_t>(op.value);
  payload.kernel = op.kernel;
  payload.here = op.here;
  payload.exchange = op.exchange;
  payload.first_tried = -1;
  take(payload.reads, op.reads);
  take(payload.writes, op.writes);
  payload.scalars.assign(op.scalars.begin(), op.scalars.end());
  if (op.kind == OpKind::kHost) payload.host = std::move(*op.host);
}

void run(Payload& payload) {
  const runtime::InsideOp inside;
  switch (payload.kind) {
    case OpKind::kKernel: payload.kernel->cpu(Args(payload.reads, payload.writes, payload.scalars)); break;
    case OpKind::kCopy: std::memcpy(payload.writes[0].data, payload.reads[0].data, payload.writes[0].bytes); break;
    case OpKind::kFill: std::memset(payload.writes[0].data, payload.value, payload.writes[0].bytes); break;
    case OpKind::kHost: payload.host(); break;
    default: break;
  }
}

// Makes the page of a flag readable and writable, although it was mapped without access (see map_memory()).
void make_accessible(void* flag) {
  const auto page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t page = reinterpret_cast<std::uintptr_t>(flag) / page_bytes * page_bytes;
  mprotect(reinterpret_cast<void*>(page), page_bytes, PROT_READ | PROT_WRITE);
}

}  // namespace

World::World(const Description& description, std::span<runtime::DeviceCore* const> cores)
    : description_(description), first_id_(cores.front()->id), machine_(description, cores, *this) {
  // The ids increase, with gaps if another thread opens devices meanwhile.
  for (std::size_t i = 0; i < cores.size(); ++i) {
    index_by_id_.resize(cores[i]->id - first_id_ + 1, -1);
    index_by_id_.back() = static_cast<int>(i);
  }
}

// This thread's clock. It is never behind the simulated time; a new thread's clock starts there.
Picos& World::clock() {
  const std::size_t index = base::thread_index();
  if (index >= clocks_.size()) clocks_.resize(index + 1, -1);
  Picos& clock = clocks_[index];
  clock = std::max(clock, machine_.now());
  return clock;
}

// Returns the points to wait for; `position` may be kEverything. The legacy stream is done only when the blocking
// streams are also done (rule 24).
std::vector<World::Target> World::targets(int device, SimStream* stream, std::uint64_t position) {
  if (stream && position != runtime::kEverything) return {{stream, position}};
  if (stream && !stream->is_legacy) return {{stream, stream->commands.tail()}};
  std::vector<Target> result;
  for (SimStream* each : machine_.device(device).streams) {
    if (!stream || each == stream || each->is_blocking) result.push_back({each, each->commands.tail()});
  }
  return result;
}

bool World::all_reached(std::span<const Target> targets, std::size_t& first) {
  // relaxed: `done` is written under the lock.
  while (first < targets.size() &&
         targets[first].stream->done.load(std::memory_order_relaxed) >= targets[first].position)
    ++first;
  return first == targets.size();
}

// Returns when the last target was reached. The ring keeps the end time of a command until a later command overwrites
// it. End times that are no longer there are earlier than any caller's clock.
Picos World::ended(std::span<const Target> targets) const {
  Picos last = 0;
  for (const Target& target : targets) {
    const Ring<Command>& commands = target.stream->commands;
    if (target.position == 0 || target.position > commands.head()) continue;
    if (commands.tail() - (target.position - 1) > commands.capacity()) continue;
    last = std::max(last, commands[target.position - 1].issued);
  }
  return last;
}

bool World::reached(int device, SimStream* stream, std::uint64_t position) {
  Functions finished;
  const base::LockGuard lock(mutex_);
  spend(description_.host.query);
  const std::vector<Target> all = targets(device, stream, position);
  std::size_t first = 0;
  if (!all_reached(all, first) && !driving_) {
    driving_ = true;
    const Picos until = clock();
    while (machine_.step(until)) continue;
    if (poll()) {
      machine_.idle_until(until);  // the host saw the change no later than now
      while (machine_.step(until)) continue;
    }
    driving_ = false;
  }
  finished.swap(finished_);
  return all_reached(all, first);
}

bool World::wait(int device, SimStream* stream, std::uint64_t position, std::int64_t deadline_ns) {
  Functions finished;
  const base::LockGuard lock(mutex_);
  const std::vector<Target> all = targets(device, stream, position);
  const Picos asked = clock();
  const bool done = await(all, deadline_ns);
  if (done) {
    const Picos end = ended(all);
    clocks_[base::thread_index()] =
        end > asked ? after(end, description_.host.sync) : after(asked, description_.host.query);
  }
  finished.swap(finished_);
  return done;
}

// Runs the machine until the targets are reached. If the machine can do nothing, only another thread can help: it sets
// a flag, reaches a point of another World, or runs a function. Then this thread polls in real time.
bool World::await(std::span<const Target> targets, std::int64_t deadline_ns) {
  base::Backoff backoff(base::kProgramWait);
  std::size_t first = 0;
  while (!all_reached(targets, first)) {
    bool moved = false;
    if (!driving_) {
      driving_ = true;
      moved = drive(targets, first, deadline_ns);
      driving_ = false;
    }
    if (all_reached(targets, first)) break;
    if (deadline_ns != 0 && base::now_ns() >= deadline_ns) return false;
    if (moved) continue;
    const base::LockPause pause(mutex_);
    backoff.pause();
  }
  return true;
}

bool World::drive(std::span<const Target> targets, std::size_t& first, std::int64_t deadline_ns) {
  bool moved = false;
  for (int steps = 1; machine_.step(kEndOfTime); ++steps) {
    moved = true;
    if (all_reached(targets, first)) return true;
    if (deadline_ns != 0 && steps % kStepsPerCheck == 0 && base::now_ns() >= deadline_ns) return true;
  }
  const Picos at = clock();
  if (!poll()) return moved;
  machine_.idle_until(at);
  return true;
}

// An exchange may wait for other threads: for ranks that have not joined the call, an abort, or a deadline. A deadline
// passes in real time, and only when no other event is left.
bool World::poll_exchanges() {
  for (SimStream* stream : machine_.held_by(OpKind::kExchange))
    static_cast<void>(advance(*stream->commands.front().payload->exchange));
  return machine_.poll_held();
}

// Polls everything outside the simulation that streams wait for. REQUIRES: this thread set driving_. Releases the lock
// to query other Worlds and backends, which have their own locks.
bool World::poll() {
  const bool any = poll_exchanges();
  std::vector<std::pair<SimStream*, StreamPoint>> awaited;  // first all points, then those that are reached
  for (SimStream* stream : machine_.held_by(OpKind::kWait)) {
    const Command& command = stream->commands.front();
    awaited.push_back({stream, {command.target, command.amount}});
  }
  if (awaited.empty()) return any;
  {
    const base::LockPause pause(mutex_);
    std::erase_if(awaited, [](const auto& each) {
      const StreamPoint& point = each.second;
      runtime::DeviceCore* core = point.stream->core;  // null: its device finished its work and was closed
      return core && !core->backend->reached(*point.stream, point.position);
    });
  }
  for (const auto& [stream, point] : awaited) machine_.release(*stream);
  return any || !awaited.empty();
}

void World::perform(SimStream& stream, Payload& payload, Name name) {
  const std::uint64_t position = stream.commands.head() + 1;
  ErrorCode code = ErrorCode::kOk;
  std::string what;
  mutex_.unlock();
  try {
    run(payload);
  } catch (const DeviceFault& fault) {
    code = ErrorCode::kDeviceFault, what = fault.what();
  } catch (const std::exception& error) {
    code = ErrorCode::kLaunchFailed, what = error.what();
  } catch (...) {
    code = ErrorCode::kLaunchFailed, what = "an exception that is not a std::exception";
  }
  mutex_.lock();
  if (code == ErrorCode::kOk) [[likely]]
    return;
  SimDevice& device = *stream.device;
  runtime::Failure failure{.code = code,
                           .text = fmt::format("{} '{}' ({}:{}) in {} of '{}': {}", op_kind_name(payload.kind),
                                               name.text(), payload.here.file, payload.here.line,
                                               runtime::stream_text(stream), device.core->info.label, what),
                           .position = position,
                           .here = payload.here};
  if (code == ErrorCode::kLaunchFailed) return runtime::fail_stream(stream, std::move(failure));
  if (device.core->fault.put(failure)) machine_.fault(device, failure);
}

bool World::advance(runtime::Exchange& exchange) {
  const base::LockPause pause(mutex_);
  return exchange.advance(runtime::Exchange::By::kWorker);
}

void World::finish(SimStream& stream, Payload& payload, Name name, const runtime::Failure* cause) {
  const std::uint64_t position = stream.commands.head() + 1;
  std::optional<runtime::Failure> failure;
  const auto fail = [&](ErrorCode code, const char* what) {
    failure = runtime::op_failure(code, payload.kind, name, payload.here, what, position);
  };
  mutex_.unlock();
  try {
    payload.exchange->finish(cause);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::exception& error) {
    fail(ErrorCode::kLaunchFailed, error.what());
  }
  mutex_.lock();
  if (failure) runtime::fail_stream(stream, std::move(*failure));
}

void World::recycle(Payload& payload) {
  if (payload.host) finished_.push_back(std::move(payload.host));
  payload.host = nullptr;
  idle_payloads_.push_back(&payload);
}

std::uint64_t World::submit(SimStream& stream, const Op& op) {
  require_supported(op, stream);
  Functions finished;
  const base::LockGuard lock(mutex_);
  require_open(stream, op.here);
  if (stream.is_wire) return machine_.enqueue(stream, wire_command_for(stream, op));
  if (is_plain_record(op, stream)) {
    if (!runtime::is_bookkeeping(op)) spend(description_.host.record);
    return stream.commands.tail();
  }
  while (stream.commands.size() >= stream.device->depth) {
    const Target room[] = {{&stream, stream.commands.tail() + 1 - stream.device->depth}};
    const Picos asked = clock();
    await(room, 0);
    clocks_[base::thread_index()] = std::max(asked, ended(room));
    require_open(stream, op.here);  // the lock was released meanwhile
  }
  Command command = command_for(stream, op);
  command.issued =
      spend(runtime::is_bookkeeping(op) || runtime::is_allocation_mark(op) ? 0 : host_cost(op, description_.host));
  finished.swap(finished_);
  const std::uint64_t position = machine_.enqueue(stream, command);
  runtime::notify_submitted(position);
  return position;
}

Command World::command_for(SimStream& stream, const Op& op) {
  Command command;
  command.kind = op.kind;
  command.engine = op.engine;
  command.name = op.name;
  switch (op.kind) {
    case OpKind::kKernel: describe_compute(command, op, op.cost.bytes, description_.compute); break;
    case OpKind::kFill: describe_compute(command, op, op.writes[0].bytes, description_.compute); break;
    case OpKind::kCopy: describe_copy(command, stream, op); break;
    case OpKind::kHost:
      command.fifo = Fifo::kLast;
      command.amount = static_cast<std::uint64_t>(std::clamp<Picos>(op.cost.time, 0, kEndOfTime));
      break;
    case OpKind::kRecord:
      command.soft =
          runtime::is_bookkeeping(op);  // only in the legacy stream; elsewhere such a record needs no command
      command.stamp = static_cast<runtime::Stamp*>(op.event);
      if (!command.stamp) break;
      command.fifo = Fifo::kLast;
      command.stamp->retain();
      break;
    case OpKind::kWait:
      command.target = op.point.stream;
      command.amount = op.point.position;
      break;
    case OpKind::kExchange: command.fifo = Fifo::kCompute; break;
    case OpKind::kAlloc: command.soft = stream.is_legacy; break;
    default:
      command.fifo = Fifo::kLast;
      command.value = op.value;
      const Range& flag = op.kind == OpKind::kWaitValue ? op.reads[0] : op.writes[0];
      command.flag = reinterpret_cast<std::uint32_t*>(runtime::address(flag));
      if (flag.block->kind == MemoryKind::kDevice) make_accessible(command.flag);
      break;
  }
  command.payload = payload_for(stream, op);
  return command;
}

// A command of a wire stream (see StreamSpec::wire) is issued at once and without launch cost. Reason: the exchange
// itself is a kernel that is already running.
Command World::wire_command_for(SimStream& stream, const Op& op) {
  Command command = command_for(stream, op);
  if (command.fifo == Fifo::kCompute)
    command.amount -= std::min(command.amount, static_cast<std::uint64_t>(description_.compute.launch));
  command.issued = machine_.now();
  return command;
}

void World::describe_copy(Command& command, SimStream& stream, const Op& op) {
  const Range& to = op.writes[0];
  const Range& from = op.reads[0];
  const int source = device_of(from, stream);
  const int destination = device_of(to, stream);
  if (source >= 0 && source == destination)
    return describe_compute(command, op, 2 * to.bytes, description_.compute);  // each byte is read and written
  command.amount = to.bytes;
  command.pageable = to.block->kind == MemoryKind::kPageable || from.block->kind == MemoryKind::kPageable;
  command.from = static_cast<std::uint16_t>(std::max(source, 0));
  command.to = static_cast<std::uint16_t>(std::max(destination, 0));
  if (source >= 0 && destination >= 0) {
    command.route = machine_.topology().peer(source, destination);
    command.direction = command.route ? CopyDirection::kPeer : CopyDirection::kStaged;
    command.engine = Engine::kCopyOut;
  } else if (destination >= 0) {
    command.direction = CopyDirection::kIn;
    command.engine = Engine::kCopyIn;
  } else {  // also if both ranges are in the memory of other Worlds, which counts as host memory
    if (source < 0) command.from = static_cast<std::uint16_t>(stream.device->index);
    command.direction = CopyDirection::kOut;
    command.engine = Engine::kCopyOut;
  }
  command.fifo = command.engine == Engine::kCopyIn ? Fifo::kIn : Fifo::kOut;
}

// The index of the device that owns the memory; -1: the host, or a device of another World.
int World::device_of(const Range& range, const SimStream& stream) const {
  if (range.block->kind != MemoryKind::kDevice) return -1;
  if (range.block->core == stream.device->core) [[likely]]
    return stream.device->index;
  // Wraps around for devices with smaller ids, which are not in this World.
  const std::uint32_t number = range.block->core->id - first_id_;
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
