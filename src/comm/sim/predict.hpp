// Predicted times of collectives: the programs of all ranks are simulated on sim devices (ProgramSimulation). Messages
// share the links by max-min fairness. predict() uses the machines of topology files, which need not exist.
// CallPredictor uses the links that a communicator has measured.
#pragma once

#include "comm/plan/algorithm.hpp"
#include "comm/plan/tuning.hpp"
#include "comm/sim/program_simulation.hpp"
#include "slip/communicator.hpp"

namespace slip::comm {

// Costs that topology files do not state.
struct PredictedCosts {
  double latency_us = 1.5;    // of a message within a machine
  double net_latency_us = 6;  // of a message to another machine
  double memory_gbps = 0;     // of a device, reads and writes together; 0: by GPU generation, 20 for a core
};

struct PredictionRequest {
  Call call;
  Algorithm algorithm = Algorithm::kRing;  // there must be a schedule for the call
  bool through_switch = false;  // all_reduce: by CommChannel::switch_tree, whose root is a switch that reduces
  // Between machines only nets of the same number reach each other (a rail). A message for a rank on another rail first
  // crosses the sender's machine through the CPU, unless a relay sends it. Rings and trees use the nets of their
  // channel.
  bool rails = false;
  std::uint64_t chunk_bytes = 0;  // 0: as communicators choose it
  PredictedCosts costs = {};
};

struct CallPrediction {
  double us = 0;
  int channels = 1;         // each carries a share of the data
  std::uint64_t steps = 0;  // primitives of all ranks
};

// Rings and trees are those of `plan`, with all its channels at once. Other algorithms have one channel: each rank uses
// its nearest net, and relays are those of rail_routes(). Throws kInvalidValue if there are too many steps to simulate.
CallPrediction predict(const Cluster& cluster, const ChannelPlan& plan, const PredictionRequest& request,
                       Here here = Here::at());

// The inputs of the tuning model for a communicator on these machines. The rates are those of the topology, in place of
// measured ones, and a further message costs nothing.
TuningInputs predicted_tuning(const Cluster& cluster, const PredictedCosts& costs, NetReach reach = NetReach::kAll);

// Predicts calls of a communicator. It uses the link rates by which the communicator chooses algorithms: measured when
// it was made, or typical for pipes of one host. It must not outlive the communicator.
class CallPredictor {
 public:
  explicit CallPredictor(const Communicator& comm) : comm_(comm.state()) {}

  // The average time in microseconds of `calls` equal calls, one after the other. `reachable`: all buffers are from
  // Communicator::allocate. Throws kInvalidValue if there are too many steps to simulate.
  double us(const Call& call, bool reachable, int calls, Here here = Here::at()) const;

 private:
  std::vector<Device> open_ranks() const;
  std::vector<RankPrograms> programs_of(const Call& call, bool reachable, int calls) const;
  const Communicator::State& comm_;
};

}  // namespace slip::comm
