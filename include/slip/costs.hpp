// Costs: what the ops of graphs and the ways to a device take, measured on it or modelled from its description. A plan
// is made from them, and predicted with them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

// A way that bytes take: some latency each time, then a rate.
struct Link {
  double bytes_per_second = 0;
  Picos latency = 0;
  Picos time_for(std::uint64_t bytes) const;
};

// One measured op. Ops that differ in size alone lie on a line between samples.
struct CostSample {
  std::string kernel;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0, bytes = 0;  // as the op says
  Picos time = 0;
};

struct Costs {
  std::string device;          // where they were measured
  Link load;                   // host memory to the device; on cpu from the page cache
  Link unload;                 // and back
  Link read;                   // disk to host memory
  double kernel_slowdown = 0;  // how much longer a kernel takes while a load runs beside it: 0.07 is 7 %
  double load_slowdown = 0;    // and a load beside a kernel
  std::vector<CostSample> samples = {};

  // Of an op: a sample of it, or between those of the same kernel and weight; without one from the op's own flops and
  // bytes at the rates of the nearest sample of that kernel. kInvalidValue when no sample is of its kernel.
  Picos time_of(const Graph& graph, const GraphOp& op) const;
};

// Measures on the device: each different op of the graph once warm and then several times, and the links.
Costs measure_costs(const Graph& graph, const Device& device, Here here = Here::at());
// From a description of the sim device ("sim:h200"): no device needed.
Costs model_costs(const Graph& graph, std::string_view device, Here here = Here::at());

Costs read_costs(const std::string& path, Here here = Here::at());
void write_costs(const Costs& costs, const std::string& path, Here here = Here::at());

}  // namespace slip
