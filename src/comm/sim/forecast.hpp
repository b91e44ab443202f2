// Forecast: what calls of a communicator should take. The programs that its ranks would run are rehearsed on a sim
// machine made of the figures by which the communicator chooses algorithms: what was measured when it was made, or what
// pipes of one host are like.
#pragma once

#include "backend/sim/description.hpp"
#include "comm/sim/rehearsal.hpp"
#include "slip/communicator.hpp"

namespace slip {

class Forecast {
 public:
  // As long as the communicator is there.
  explicit Forecast(const Communicator& comm) : comm_(comm.state()) {}

  // In microseconds a call, of so many one after the other. `reachable`: all buffers are from Communicator::allocate.
  // Throws kInvalidValue when that would be too much to simulate.
  double us(const Call& call, bool reachable, int calls, Here here = Here::at()) const;

 private:
  sim::Description machine() const;
  std::vector<Scene> scenes_of(const Call& call, bool reachable, int calls) const;
  const Communicator::State& comm_;
};

}  // namespace slip
