// Costs: what the ops of graphs and the ways to a device take, measured on it or modelled from its description. A plan
// is made from them, and predicted with them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

// A way that bytes take: some latency each time, then a rate. A rate of 0 is not known.
struct Link {
  double bytes_per_second = 0;
  Picos latency = 0;
  Picos time_for(std::uint64_t bytes) const;  // kInvalidValue when the rate is not known
  friend bool operator==(const Link&, const Link&) = default;
};

// One measured op. Ops that differ in size alone lie on a line between samples.
struct CostSample {
  std::string kernel;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0, bytes = 0;  // as the op says
  Picos time = 0;
  Picos beside = 0;  // the same while loads run beside it; 0: as Costs::kernel_slowdown says
  friend bool operator==(const CostSample&, const CostSample&) = default;
};

struct Costs {
  std::string device = {};     // where they were measured
  Link load = {};              // host memory to the device; on cpu from the page cache
  Link unload = {};            // and back
  Link read = {};              // disk to host memory
  double kernel_slowdown = 0;  // how much longer a kernel takes while a load runs beside it: 0.07 is 7 %
  double load_slowdown = 0;    // and a load beside a kernel
  std::vector<CostSample> samples = {};

  // Of an op: a sample of it, or between those of the same kernel and weight; without one from the op's own flops and
  // bytes at the rates of the nearest sample of that kernel. kInvalidValue when no sample is of its kernel.
  Picos time_of(const Graph& graph, const GraphOp& op) const;
  // How much longer all ops of a graph together take while loads run beside them.
  double slowdown_of(const Graph& graph) const;
  friend bool operator==(const Costs&, const Costs&) = default;
};

// One transfer, issued to a stream as the program does it. `to` is device memory.
struct LoadProbe {
  std::function<void(StreamRef stream, Range to)> issue = {};  // empty: a copy from pinned memory
  std::uint64_t piece_bytes = std::uint64_t{16} << 20;         // the most that it moves at once
};

// Measures on the device: each different op of the graph, the ways between host memory and the device, and how much
// kernels and loads slow each other. Each is warmed and then measured several times, of which the median counts. Takes
// as much device memory as the largest op and one piece. `read` is left to who knows the disk: measure_link.
Costs measure_costs(const Graph& graph, const Device& device, const LoadProbe& load = {}, Here here = Here::at());
// A way of any kind: `issue` moves the first so many bytes, up to `piece_bytes` and a multiple of `unit_bytes`.
Link measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                  std::uint64_t piece_bytes, std::uint64_t unit_bytes = 1, Here here = Here::at());
// From a description of the sim device ("sim:h200"): no device needed.
Costs model_costs(const Graph& graph, std::string_view device, Here here = Here::at());

// As JSON: what is written is read, to the last bit. Throws kIo, and kParse with the file and place.
Costs read_costs(const std::string& path, Here here = Here::at());
void write_costs(const Costs& costs, const std::string& path, Here here = Here::at());

}  // namespace slip
