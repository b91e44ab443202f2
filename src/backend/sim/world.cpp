#include "backend/sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "backend/sim/pauses.hpp"
#include "base/clock.hpp"
#include "base/sync.hpp"
#include "base/thread.hpp"
#include "runtime/exchange.hpp"

namespace slip::sim {
namespace {

constexpr int kStepsPerLook = 4096;  // machine steps between two looks at the real clock

void pause(Pauses& pauses, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  if (const std::int64_t sleep_ns = pauses.next_ns()) Parker().park(now_ns() + sleep_ns);
  else yield_thread();
  lock.lock();
}

}  // namespace

World::World(const Description& description, std::span<DeviceCore* const> cores)
    : description_(description), machine_(description, cores, *this), first_id_(cores.front()->id) {
  // Ids grow with time, also when another thread opens devices meanwhile
  for (std::size_t i = 0; i < cores.size(); ++i) {
    index_by_id_.resize(cores[i]->id - first_id_ + 1, -1);
    index_by_id_.back() = static_cast<int>(i);
  }
}

SimStream* World::open_stream(int device, const StreamSpec& spec) {
  const std::lock_guard lock(mutex_);
  return &machine_.open_stream(machine_.device(device), spec);
}

void World::close_stream(SimStream& stream) {
  const std::lock_guard lock(mutex_);
  machine_.close_stream(stream);
}

void World::close_device(int device) {
  const std::lock_guard lock(mutex_);
  machine_.close_device(machine_.device(device));
}

Picos World::now() {
  const std::lock_guard lock(mutex_);
  return clock();
}

// This thread's clock. A thread that calls for the first time starts at what is simulated.
Picos& World::clock() {
  const std::size_t index = thread_index();
  if (index >= clocks_.size()) clocks_.resize(index + 1, -1);
  Picos& clock = clocks_[index];
  clock = std::max(clock, machine_.now());
  return clock;
}

// The points that stand for `position` of the stream, kEverything included. The legacy stream is done when the blocking
// streams are done too (rule 24).
std::vector<World::Target> World::targets(int device, SimStream* stream, std::uint64_t position) {
  if (stream && position != kEverything) return {{stream, position}};
  if (stream && !stream->is_legacy) return {{stream, stream->commands.tail()}};
  std::vector<Target> result;
  for (SimStream* each : machine_.device(device).streams) {
    if (!stream || each == stream || each->is_blocking) result.push_back({each, each->commands.tail()});
  }
  return result;
}

bool World::all_reached(std::span<const Target> targets, std::size_t& first) {
  // relaxed: `done` changes under the lock.
  while (first < targets.size() &&
         targets[first].stream->done.load(std::memory_order_relaxed) >= targets[first].position)
    ++first;
  return first == targets.size();
}

// When the last of them was reached. A command's own end is kept until its place in the ring is used again; what is
// older than that is older than any clock that may ask.
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
  const std::lock_guard lock(mutex_);
  spend(description_.host.query);
  const std::vector<Target> all = targets(device, stream, position);
  std::size_t first = 0;
  if (!all_reached(all, first) && !driving_) {
    driving_ = true;
    const Picos until = clock();
    while (machine_.step(until)) continue;
    if (poll()) {
      machine_.idle_until(until);  // the host saw it change no later than now
      while (machine_.step(until)) continue;
    }
    driving_ = false;
  }
  finished.swap(finished_);
  return all_reached(all, first);
}

bool World::wait(int device, SimStream* stream, std::uint64_t position, std::int64_t deadline_ns) {
  Functions finished;
  Lock lock(mutex_);
  const std::vector<Target> all = targets(device, stream, position);
  const Picos asked = clock();
  const bool done = await(lock, all, deadline_ns);
  if (done) {
    const Picos end = ended(all);
    clocks_[thread_index()] = end > asked ? after(end, description_.host.sync) : after(asked, description_.host.query);
  }
  finished.swap(finished_);
  return done;
}

// Runs the machine until the targets are reached. Where only another thread can help (a word, a point of another world,
// a function that another thread runs) it looks again and again, in real time.
bool World::await(Lock& lock, std::span<const Target> targets, std::int64_t deadline_ns) {
  Pauses pauses;
  std::size_t first = 0;
  while (!all_reached(targets, first)) {
    bool moved = false;
    if (!driving_) {
      driving_ = true;
      moved = drive(targets, first, deadline_ns);
      driving_ = false;
    }
    if (all_reached(targets, first)) break;
    if (deadline_ns != 0 && now_ns() >= deadline_ns) return false;
    if (!moved) pause(pauses, lock);
  }
  return true;
}

bool World::drive(std::span<const Target> targets, std::size_t& first, std::int64_t deadline_ns) {
  bool moved = false;
  for (int steps = 1; machine_.step(kNever); ++steps) {
    moved = true;
    if (all_reached(targets, first)) return true;
    if (deadline_ns != 0 && steps % kStepsPerLook == 0 && now_ns() >= deadline_ns) return true;
  }
  const Picos at = clock();
  if (!poll()) return moved;
  machine_.idle_until(at);
  return true;
}

// Exchanges may be held by other threads, too: ranks of theirs that have not come, an abort, or a deadline, which
// passes in real time and only when nothing else is left to happen.
bool World::poll_exchanges() {
  for (Exchange* exchange : machine_.held_exchanges()) static_cast<void>(advance(*exchange));
  return machine_.poll_words();
}

// Looks at what holds streams from outside. REQUIRES: driving_ is this thread's. Lets go of the lock to ask other
// worlds and backends, which have locks of their own.
bool World::poll() {
  bool any = poll_exchanges();
  struct Asked {
    SimStream* stream;
    Point point;
    bool reached;
  };
  std::vector<Asked> asked;
  for (SimStream* stream : machine_.held_by_points()) {
    const Command& command = stream->commands.front();
    asked.push_back({stream, {command.target, command.amount}, false});
  }
  if (asked.empty()) return any;
  mutex_.unlock();
  for (Asked& each : asked) {
    DeviceCore* core = each.point.stream->core;  // null: its device is closed, after finishing its work
    each.reached = !core || core->backend->reached(each.point.stream, each.point.position);
  }
  mutex_.lock();
  for (const Asked& each : asked) {
    if (!each.reached) continue;
    machine_.release(*each.stream);
    any = true;
  }
  return any;
}

void World::perform(SimStream& stream, Payload& payload, Name name) {
  const std::uint64_t position = stream.commands.head() + 1;
  std::string what;
  mutex_.unlock();
  const Outcome outcome = sim::perform(payload, what);
  mutex_.lock();
  if (outcome == Outcome::kDone) [[likely]]
    return;
  SimDevice& device = *stream.device;
  Failure failure{
      .code = outcome == Outcome::kFault ? Code::kDeviceFault : Code::kLaunchFailed,
      .text = fmt::format("{} '{}' ({}:{}) in stream {} of '{}': {}", kind_name(payload.kind), name.text(),
                          payload.here.file, payload.here.line, stream.last_id, device.core->info.name, what),
      .position = position,
      .here = payload.here};
  if (outcome == Outcome::kFailed) return fail_stream(stream, std::move(failure));
  if (device.core->fault.put(failure)) machine_.fault(device, failure);
}

bool World::advance(Exchange& exchange) {
  mutex_.unlock();
  const bool done = exchange.advance(Exchange::By::kWorker);
  mutex_.lock();
  return done;
}

void World::finish(SimStream& stream, Payload& payload, Name name, const Failure* cause) {
  const std::uint64_t position = stream.commands.head() + 1;
  std::optional<Failure> failure;
  const auto fail = [&](Code code, const char* what) {
    failure = Failure{.code = code,
                      .text = fmt::format("{} '{}' issued at {}:{} failed: {}", kind_name(payload.kind), name.text(),
                                          payload.here.file, payload.here.line, what),
                      .position = position,
                      .here = payload.here};
  };
  mutex_.unlock();
  try {
    payload.exchange->finish(cause);
  } catch (const Error& error) {
    fail(error.code(), error.what());
  } catch (const std::exception& error) {
    fail(Code::kLaunchFailed, error.what());
  }
  mutex_.lock();
  if (failure) fail_stream(stream, std::move(*failure));
}

void World::recycle(Payload& payload) {
  if (payload.host) finished_.push_back(std::move(payload.host));
  payload.host = nullptr;
  idle_payloads_.push_back(&payload);
}

}  // namespace slip::sim
