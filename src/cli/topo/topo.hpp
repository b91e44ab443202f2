// `slip topo`: a machine and its channels as text, as a picture and as JSON, and predicted times of collectives on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/api/call.hpp"
#include "comm/sim/cost_model.hpp"
#include "slip/topology.hpp"
#include "topo/fold.hpp"

namespace slip::cli {

std::string draw_tree(const TopoSystem& system);   // the tree of nodes, with rates
std::string draw_paths(const TopoSystem& system);  // the matrix of path types
std::string draw_plan(const Cluster& cluster, const ChannelPlan& plan);

std::string draw_svg(const Cluster& cluster, const ChannelPlan& plan);

std::string gbps_text(double gbps);                 // "24 GB/s"
const char* device_word(const TopoSystem& system);  // "GPU", "core" or "CPU"

struct PredictOptions {
  std::string kind;  // "all_reduce"; empty: no prediction
  std::string begin = "64K", end = "256M", algorithms = "all", html, trace, json;
  std::string network;     // the kind of network; empty: by the vendor of the NICs
  std::string fit, table;  // measured times to fit the costs to; `table`: which one of a JSON file
  bool rails = false, one_nic = false;
  int channels = ChannelLimits{}.max_channels;
  bool simulate = false;  // message by message, instead of the model of GPU costs
  double factor = 4, latency_us = 1.5, net_latency_us = 6, memory_gbps = 0;
  bool net_latency_given = false;
};
// Whether the prediction is a simulation. Only a simulation has a timeline, and machines without GPUs have no model.
bool simulates(const PredictOptions& options, const TopoSystem& machine);

comm::Collective kind_asked(const PredictOptions& options);
ChannelLimits limits_asked(const PredictOptions& options);
// The sizes of the table, from --begin to --end.
std::vector<double> sizes_asked(const PredictOptions& options);

// The bytes of a call of about this size: whole elements of 4 bytes, and equal blocks of all ranks.
std::uint64_t whole_bytes(comm::Collective kind, double size, int ranks);

// The machines of --file or this machine, with --nvlink, --fail and --slow. Prints warnings to the standard error.
struct MachineOptions {
  std::vector<std::string> files;
  std::vector<std::string> failed, slow;  // parts, on the first machine
  int nvlinks = 0, sm = 0;
  bool compared = false;  // --compare: `files` is one of several, so another one may be without NVLinks
};
std::vector<TopoSystem> machines_asked(const MachineOptions& options);
// Copies of the machines, with the broken parts of --fail and --slow on the first one. More copies than `max_copies`
// are folded.
topo::FoldedCluster cluster_asked(const MachineOptions& options, const std::vector<TopoSystem>& machines, int copies,
                                  int max_copies);

// The inputs of the model, with --rails, --network and --net-latency.
comm::ModelInputs inputs_asked(const PredictOptions& options, const topo::FoldedCluster& cluster,
                               const ChannelPlan& plan);

// Prints the table of a simulation, and with --trace or --html writes the timeline of its last row.
void print_simulation(const PredictOptions& options, const Cluster& cluster, const ChannelPlan& plan);
// Prints the table of the model of GPU costs, after a fit if there is one.
void print_model(const PredictOptions& options, const topo::FoldedCluster& cluster, const ChannelPlan& plan);
// Prints the times on copies of each file's machine, by number of copies; `svg`: a picture of them, or empty.
void print_comparison(const PredictOptions& options, const MachineOptions& machines, const std::vector<int>& nodes,
                      const std::string& svg);

}  // namespace slip::cli
