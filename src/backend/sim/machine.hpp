// Machine: the discrete-event simulation of all devices of a world. It knows no threads, no host and no real time; the
// World around it holds the lock and says how far to go.
//
// An instant goes in three parts: first all that ends or becomes ready in it, then the engines choose among what is
// ready (so that priority decides, not the order of two simultaneous events), then the links share their bandwidth
// anew. Only then time moves on.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/sim/description.hpp"
#include "backend/sim/model.hpp"

namespace slip::sim {

// Who runs the functions of ops: the World, which lets go of its lock meanwhile. The machine does not step meanwhile,
// but commands may be enqueued.
class Performer {
 public:
  virtual ~Performer() = default;
  virtual void perform(SimStream& stream, Payload& payload, Name name) = 0;
  virtual void recycle(Payload& payload) = 0;
  virtual bool advance(Exchange& exchange) = 0;  // true: it is done
  // The first op of the stream is an exchange that is done, or that does not go on because of `cause`.
  virtual void finish(SimStream& stream, Payload& payload, Name name, const Failure* cause) = 0;
};

class Machine {
 public:
  Machine(const Description& description, std::span<DeviceCore* const> cores, Performer& performer);

  Picos now() const { return now_; }
  SimDevice& device(int index) { return devices_[static_cast<std::size_t>(index)]; }
  Topology& topology() { return topology_; }

  SimStream& open_stream(SimDevice& device, const StreamSpec& spec);
  void close_stream(SimStream& stream);
  void close_device(SimDevice& device);  // its streams are drained, unless the process exits

  // Returns the command's position. REQUIRES: command.issued >= now().
  std::uint64_t enqueue(SimStream& stream, Command command);

  // Does the next thing that happens until `limit`; false: there is none.
  bool step(Picos limit);
  // Time passes without anything happening. REQUIRES: step(at) was false.
  void idle_until(Picos at) { now_ = at > now_ ? at : now_; }

  // Streams that are held by something outside: words in memory, and points of other worlds and backends.
  bool poll_words();  // and exchanges; true: some stream goes on
  std::vector<Exchange*> held_exchanges() const;
  std::vector<SimStream*> held_by_points() const;
  void release(SimStream& stream);  // its point is reached

  // The device is lost: what is pending ends without effect.
  void fault(SimDevice& device, const Failure& failure);

 private:
  // dispatch.cpp: commands leave their queues.
  void poke(SimStream& stream);
  void advance(SimStream& stream);
  bool start_next(SimStream& stream);
  static Ring<SimStream*>* lane_of(SimStream& stream, const Command& command);
  bool behind_barrier(SimStream& stream, const Command& command);
  bool resolved(SimStream& stream, const Command& command);
  bool point_reached(SimStream& stream, const Command& command);
  bool may_go_on(SimStream& stream);
  void begin(SimStream& stream, const Command& command);
  void inherit_failure(SimStream& stream, const Command& command);
  bool exchange_moves(SimStream& stream);
  void go_on(SimStream& stream);
  void end_exchange(SimStream& stream);
  void complete(SimStream& stream);
  void leave_epoch(SimStream& stream, std::uint64_t epoch);
  void wait_on(SimStream& stream, SimStream& target, std::uint64_t position);
  void stop_waiting(SimStream& stream);
  void hold(SimStream& stream);
  void tell_barriers(SimStream& stream);

  // engines.cpp: what holds an op while it runs.
  void ask_compute(SimStream& stream);
  void start_beside(SimStream& stream);
  void ask_copy(SimStream& stream);
  void start_engines(SimDevice& device);
  void start_compute(SimDevice& device);
  static const HardwareQueue* queue_of(const SimStream& stream, const SimDevice& device);
  SimStream& take_copy(SimDevice& device, SerialEngine& engine) const;
  void start_copy(SimStream& stream, const Route& route);
  void start_flow(SimStream& stream);
  void start_callback(SimStream& stream);
  void stage_ended(SimStream& stream);
  void end_compute(SimStream& stream);
  void end_copy(SimStream& stream);
  void touch_memory(SimStream& stream, int change);
  void copies_beside(SimDevice& device, int change);
  void touch_flow(SimStream& stream, int change);
  void kernels_beside(SimDevice& device);
  void kernels_beside(SimStream& stream);
  void tell_run(SimStream& stream) const;
  void perform(SimStream& stream);
  void mark_dirty(SimDevice& device);
  const Route& route_of(const SimStream& stream) const;

  const Description description_;
  Performer& performer_;
  Links links_;
  Topology topology_;
  std::deque<SimDevice> devices_;
  Picos now_ = 0;
  Timers timers_;
  Ring<SimStream*> runnable_;
  std::vector<SimDevice*> dirty_;  // with engines that may start something
  std::vector<SimDevice*> starting_;
  std::vector<SimStream*> held_;
  std::uint64_t ready_order_ = 0;
};

}  // namespace slip::sim
