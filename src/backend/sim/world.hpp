// World: devices that share one virtual time and one lock, and the clocks of the host threads that use them. SimBackend
// uses it.
//
// Every host thread has a virtual clock. Each call advances the caller's clock. A command is issued at the caller's
// clock, and a wait moves the clock to the end of the work. The simulation never runs further than needed: a wait
// simulates until its target is reached, and a query simulates up to the caller's clock. So a program with one host
// thread gets the same times in every run. If another thread has simulated beyond a thread's clock, the next call of
// that thread moves its clock forward.
//
// Only one thread at a time steps the simulation (driving_). That thread also runs the kernels and host functions of
// the ops, and releases the lock meanwhile. All public functions may be called from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/sim/machine.hpp"

namespace slip::sim {

class World : private Performer {
 public:
  World(const Description& description, std::span<runtime::DeviceCore* const> cores);

  SimStream* open_stream(int device, const runtime::StreamSpec& spec) {
    const base::LockGuard lock(mutex_);
    return &machine_.open_stream(machine_.device(device), spec);
  }
  void close_stream(SimStream& stream) {
    const base::LockGuard lock(mutex_);
    machine_.close_stream(stream);
  }
  void close_device(int device) {
    const base::LockGuard lock(mutex_);
    machine_.close_device(machine_.device(device));
  }

  std::uint64_t submit(SimStream& stream, const Op& op);
  // A null stream means all streams of the device.
  bool reached(int device, SimStream* stream, std::uint64_t position);
  bool wait(int device, SimStream* stream, std::uint64_t position, std::int64_t deadline_ns);
  Picos now() {
    const base::LockGuard lock(mutex_);
    return clock();
  }

 private:
  struct Target {
    SimStream* stream;
    std::uint64_t position;
  };
  using Functions = std::vector<std::function<void()>>;

  // How an op becomes a command.
  Command command_for(SimStream& stream, const Op& op) SLIP_REQUIRES(mutex_);
  Command wire_command_for(SimStream& stream, const Op& op) SLIP_REQUIRES(mutex_);
  void describe_copy(Command& command, SimStream& stream, const Op& op) SLIP_REQUIRES(mutex_);
  int device_of(const Range& range, const SimStream& stream) const;
  Payload* payload_for(const SimStream& stream, const Op& op) SLIP_REQUIRES(mutex_);

  Picos& clock() SLIP_REQUIRES(mutex_);
  Picos spend(Picos cost) SLIP_REQUIRES(mutex_) {
    Picos& mine = clock();
    return mine = after(mine, cost);
  }
  std::vector<Target> targets(int device, SimStream* stream, std::uint64_t position) SLIP_REQUIRES(mutex_);
  // `first`: index of the first target that may not be reached yet. The call advances it past reached targets.
  static bool all_reached(std::span<const Target> targets, std::size_t& first);
  Picos ended(std::span<const Target> targets) const;  // when the last target was reached
  bool await(std::span<const Target> targets, std::int64_t deadline_ns) SLIP_REQUIRES(mutex_);
  bool drive(std::span<const Target> targets, std::size_t& first, std::int64_t deadline_ns) SLIP_REQUIRES(mutex_);
  bool poll() SLIP_REQUIRES(mutex_);
  bool poll_exchanges() SLIP_REQUIRES(mutex_);

  void perform(SimStream& stream, Payload& payload, Name name) override SLIP_REQUIRES(mutex_);
  bool advance(runtime::Exchange& exchange) override SLIP_REQUIRES(mutex_);
  void finish(SimStream& stream, Payload& payload, Name name, const runtime::Failure* cause) override
      SLIP_REQUIRES(mutex_);
  void recycle(Payload& payload) override SLIP_REQUIRES(mutex_);

  const Description description_;
  const std::uint32_t first_id_;
  std::vector<int> index_by_id_;  // devices by id - first_id_; -1: of another World. Constant after construction

  base::Mutex mutex_;
  Machine machine_ SLIP_GUARDED_BY(mutex_);
  std::vector<Picos> clocks_ SLIP_GUARDED_BY(mutex_);  // by thread_index(); below 0: the thread has not called yet
  // True while a thread steps the machine. That thread may have released the lock, to run a function.
  bool driving_ SLIP_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<Payload>> payloads_ SLIP_GUARDED_BY(mutex_);
  std::vector<Payload*> idle_payloads_ SLIP_GUARDED_BY(mutex_);
  // Host functions that have run. The next caller destroys them after it has released the lock, because their
  // destructors may free buffers.
  Functions finished_ SLIP_GUARDED_BY(mutex_);
};

}  // namespace slip::sim
