// `slip topo --predict`: what a collective would take on the machines that are shown.
#pragma once

#include <string>

#include "slip/topology.hpp"

namespace slip::cli {

struct PredictAsked {
  std::string kind;  // "all_reduce"; empty: nothing is predicted
  std::string begin = "64K", end = "256M", algorithms = "all", html, trace, json;
  bool rails = false;
  double factor = 4, latency_us = 1.5, net_latency_us = 6, memory_gbps = 0;
};

// Prints the table, and writes the timeline of the last line if asked to.
void print_prediction(const PredictAsked& asked, const Cluster& cluster, const ChannelPlan& plan);

}  // namespace slip::cli
