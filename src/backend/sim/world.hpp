// World: devices that share one virtual time and one lock, and the host as they see it.
//
// Every host thread has a virtual clock. A call costs it time; what it submits is issued at its clock; waiting moves it
// to the end of the work. Nobody simulates ahead of need: a wait runs the machine until its target is reached, a query
// until the caller's clock. With one host thread a program therefore gives the same times on every run. A thread whose
// clock lags behind what others have simulated is pulled up when it calls.
//
// Functions of ops run on the thread that drives the machine, without the lock. All public functions may be called from
// several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "backend/sim/machine.hpp"

namespace slip::sim {

class World : private Performer {
 public:
  World(const Description& description, std::span<DeviceCore* const> cores);

  SimStream* open_stream(int device, const StreamSpec& spec);
  void close_stream(SimStream& stream);
  void close_device(int device);

  std::uint64_t submit(SimStream& stream, const Op& op);
  // Null stream: all streams of the device.
  bool reached(int device, SimStream* stream, std::uint64_t position);
  bool wait(int device, SimStream* stream, std::uint64_t position, std::int64_t deadline_ns);
  Picos now();

  const Description& description() const { return description_; }

 private:
  struct Target {
    SimStream* stream;
    std::uint64_t position;
  };
  using Lock = std::unique_lock<std::mutex>;
  using Functions = std::vector<std::function<void()>>;

  // What an op becomes; submit.cpp.
  void require_supported(const Op& op, const SimStream& stream) const;
  Picos host_cost(const Op& op) const;
  Command command_for(SimStream& stream, const Op& op);
  Command wire_command_for(SimStream& stream, const Op& op);
  void describe_copy(Command& command, SimStream& stream, const Op& op);
  void describe_compute(Command& command, const Op& op, std::uint64_t bytes) const;
  int device_of(const Range& range, const SimStream& stream) const;
  Payload* payload_for(const SimStream& stream, const Op& op);

  Picos& clock();
  Picos spend(Picos cost) {
    Picos& mine = clock();
    return mine = after(mine, cost);
  }
  std::vector<Target> targets(int device, SimStream* stream, std::uint64_t position);
  static bool all_reached(std::span<const Target> targets, std::size_t& first);
  Picos ended(std::span<const Target> targets) const;
  bool await(Lock& lock, std::span<const Target> targets, std::int64_t deadline_ns);
  bool drive(std::span<const Target> targets, std::size_t& first, std::int64_t deadline_ns);
  bool poll();
  bool poll_exchanges();

  void perform(SimStream& stream, Payload& payload, Name name) override;
  bool advance(Exchange& exchange) override;
  void finish(SimStream& stream, Payload& payload, Name name, const Failure* cause) override;
  void recycle(Payload& payload) override;

  const Description description_;
  std::mutex mutex_;  // guards what follows
  Machine machine_;
  std::vector<int> index_by_id_;  // devices by id, from first_id_ on; -1: of another world
  const std::uint32_t first_id_;
  std::vector<Picos> clocks_;  // by thread_index(); below 0: not seen yet
  bool driving_ = false;       // some thread steps the machine; it may be without the lock, in a function
  std::vector<std::unique_ptr<Payload>> payloads_;
  std::vector<Payload*> idle_payloads_;
  Functions finished_;  // host functions that ran; destroyed without the lock, since they may own buffers
};

}  // namespace slip::sim
