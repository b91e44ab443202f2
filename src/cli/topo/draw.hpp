// A machine and its channels for people: text, and a picture.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "slip/topology.hpp"

namespace slip::cli {

std::string draw_tree(const TopoSystem& system);   // what hangs on what, with rates
std::string draw_paths(const TopoSystem& system);  // the matrix of path types
std::string draw_plan(const Cluster& cluster, const ChannelPlan& plan);

std::string draw_svg(const Cluster& cluster, const ChannelPlan& plan);

nlohmann::ordered_json topo_json(const Cluster& cluster, const ChannelPlan& plan);

// "8 GPUs", "1 net".
std::string counted(std::size_t count, const std::string& what);
std::string gbps_text(double gbps);                 // "24 GB/s"
const char* device_word(const TopoSystem& system);  // "GPU", "core" or "CPU"

}  // namespace slip::cli
