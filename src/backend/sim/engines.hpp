// Engines: the part of the simulation that runs commands after Machine has dispatched them. It models the compute
// engine, the copy engines, the thread for host functions, and the links that copies cross. Commands are served in the
// order in which they became ready. Exceptions: the compute engine orders by priority first, and copy engines prefer
// the hardware queue that they served last (docs/semantics.md, rules 46-50, 75, 79, 82, 83). Guarded by the mutex of
// World.
#pragma once

#include <deque>
#include <vector>

#include "backend/sim/description.hpp"
#include "backend/sim/model.hpp"

namespace slip::sim {

// Runs the functions of ops. World implements it and releases its mutex during these calls. Until a call returns,
// Machine does not step, but other threads may enqueue commands.
class Performer {
 public:
  virtual ~Performer() = default;
  virtual void perform(SimStream& stream, Payload& payload, Name name) = 0;
  virtual void recycle(Payload& payload) = 0;
  virtual bool advance(runtime::Exchange& exchange) = 0;  // true: it is done
  // Finishes the exchange that is the first command of the stream: it is done, or has failed because of `cause`.
  virtual void finish(SimStream& stream, Payload& payload, Name name, const runtime::Failure* cause) = 0;
};

class Engines {
 public:
  Engines(const Description& description, std::deque<SimDevice>& devices, Timers& timers, Performer& performer,
          int device_count);

  Topology& topology() { return topology_; }

  // Each of these puts the first command of the stream into the queue of its engine.
  void queue_compute(SimStream& stream);
  void queue_copy(SimStream& stream);
  void queue_callback(SimStream& stream) {
    stream.stage = Stage::kWaiting;
    stream.device->callback.waiting.push(&stream);
    mark_dirty(*stream.device);
  }

  // Lets the engines choose among the commands that became ready in this instant. False: there was nothing to choose.
  bool start_ready();
  // Recomputes how flows share the bandwidth of the links. Must be called before time advances.
  void settle_links() {
    if (links_.settled()) return;
    for (Flow* flow : links_.settle(now())) timers_.set(flow->stream->timer, flow->end);
  }

  // The timer of the stream's command has fired. True: the command is done; false: its next stage has begun.
  bool end_stage(SimStream& stream);

  // Reports to observers that the stream's first command has run.
  void notify_run(SimStream& stream) const;

 private:
  SimDevice& device(int index) { return devices_[static_cast<std::size_t>(index)]; }
  Picos now() const { return timers_.now(); }
  void mark_dirty(SimDevice& device) {
    if (device.dirty) return;
    device.dirty = true;
    dirty_.push_back(&device);
  }
  // A kernel of an exchange (see StreamSpec::wire) uses a reserved small part of the device. It does not wait for other
  // kernels, and slows them down as copies do.
  void start_wire_kernel(SimStream& stream) {
    stream.stage = Stage::kWireKernel;
    count_copies(*stream.at, +1);
    timers_.set(stream.timer, after(now(), static_cast<Picos>(stream.commands.front().amount)));
  }
  void start_engines(SimDevice& device);
  void start_compute(SimDevice& device);
  void start_copy(SimStream& stream, const Route& route);
  void start_flow(SimStream& stream);
  void start_callback(SimStream& stream);
  void end_compute(SimStream& stream);
  void end_copy(SimStream& stream);
  const Route& route_of(const SimStream& stream) const;
  void perform(SimStream& stream);

  // How concurrent kernels and copies slow each other down.
  void touch_memory(SimStream& stream, int change);
  void count_copies(SimDevice& device, int change);
  void touch_flow(SimStream& stream, int change);
  void slow_copy(SimStream& stream);

  const Description& description_;
  std::deque<SimDevice>& devices_;
  Timers& timers_;
  Performer& performer_;
  FlowNetwork links_;
  Topology topology_;
  std::vector<SimDevice*> dirty_;     // devices whose engines may be able to start a command
  std::vector<SimDevice*> starting_;  // scratch memory of start_ready()
  std::uint64_t ready_order_ = 0;
};

}  // namespace slip::sim
