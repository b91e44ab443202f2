// Machine: the discrete-event simulation of devices that share one virtual time. World uses it: World holds the lock
// and says how far to simulate. Machine itself uses no threads and no real time.
//
// Each instant has three phases. First, commands end and others become ready. Then the engines choose among the ready
// commands, so that priority decides and not the order of two simultaneous events. Then the flows get new shares of the
// bandwidth of the links. Only after that does time advance.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "backend/sim/engines.hpp"

namespace slip::sim {

class Machine {
 public:
  Machine(const Description& description, std::span<runtime::DeviceCore* const> cores, Performer& performer);

  Picos now() const { return timers_.now(); }
  SimDevice& device(int index) { return devices_[static_cast<std::size_t>(index)]; }
  Topology& topology() { return engines_.topology(); }

  SimStream& open_stream(SimDevice& device, const runtime::StreamSpec& spec);
  void close_stream(SimStream& stream);
  void close_device(SimDevice& device);  // REQUIRES: its streams are drained, or the process exits

  // Returns the command's position. REQUIRES: command.issued >= now().
  std::uint64_t enqueue(SimStream& stream, Command command);

  // Simulates the next event up to the time `limit`; false: there is none.
  bool step(Picos limit);
  // Advances time without an event. REQUIRES: step(at) returned false.
  void idle_until(Picos at) { timers_.advance_to(at > now() ? at : now()); }

  // Streams may wait for something outside the simulation: flags in memory, exchanges, points of other Worlds or of
  // other backends. World polls these with the following functions.
  bool poll_held();                                    // polls flags and exchanges; true: some stream can continue
  std::vector<SimStream*> held_by(OpKind kind) const;  // the streams that wait in a command of this kind
  void release(SimStream& stream);  // World calls it when the point that the stream waits for is reached

  // Fails all streams of a device that has a fault: their pending commands end without effect. REQUIRES: the fault is
  // set in the DeviceCore.
  void fault(SimDevice& device, const runtime::Failure& failure);

 private:
  // Puts the stream into a list instead of calling advance(). The end of one command may release a chain of any length,
  // and a recursion of that depth would overflow the stack.
  void make_runnable(SimStream& stream) {
    if (stream.runnable) return;
    stream.runnable = true;
    runnable_.push(&stream);
  }
  void advance(SimStream& stream);
  bool start_next(SimStream& stream);
  bool resolved(SimStream& stream, const Command& command);
  bool point_reached(SimStream& stream, const Command& command);
  void begin(SimStream& stream, const Command& command);
  bool exchange_started(SimStream& stream);
  void continue_exchange(SimStream& stream);
  void end_exchange(SimStream& stream);
  void complete(SimStream& stream);
  void leave_epoch(SimStream& stream, std::uint64_t epoch);
  void hold(SimStream& stream);

  const Description description_;
  Performer& performer_;
  std::deque<SimDevice> devices_;
  Timers timers_;
  Engines engines_;
  Ring<SimStream*> runnable_;     // streams whose next command may start in this instant
  std::vector<SimStream*> held_;  // streams that wait for something outside the simulation
};

}  // namespace slip::sim
