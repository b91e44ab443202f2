// `slip topo`: a machine and its channels as text, as a picture and as JSON, and predicted times of collectives on it.
#pragma once

#include <string>

#include "slip/topology.hpp"

namespace slip::cli {

std::string draw_tree(const TopoSystem& system);   // the tree of nodes, with rates
std::string draw_paths(const TopoSystem& system);  // the matrix of path types
std::string draw_plan(const Cluster& cluster, const ChannelPlan& plan);

std::string draw_svg(const Cluster& cluster, const ChannelPlan& plan);

// "8 GPUs", "1 net".
std::string counted(std::size_t count, const std::string& what);
std::string gbps_text(double gbps);                 // "24 GB/s"
const char* device_word(const TopoSystem& system);  // "GPU", "core" or "CPU"

struct PredictOptions {
  std::string kind;  // "all_reduce"; empty: no prediction
  std::string begin = "64K", end = "256M", algorithms = "all", html, trace, json;
  bool rails = false;
  double factor = 4, latency_us = 1.5, net_latency_us = 6, memory_gbps = 0;
};

// Prints the table, and with --trace or --html writes the timeline of its last row.
void print_prediction(const PredictOptions& options, const Cluster& cluster, const ChannelPlan& plan);

}  // namespace slip::cli
