// Costs: the times of a graph's ops and of the links to a device. They are measured on the device, or computed from the
// description of a sim device. Plans are made and predicted from them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

// The cost of transfers over a link: each takes latency + bytes / rate. A rate of 0 means unknown.
struct LinkCost {
  double bytes_per_second = 0;
  Picos latency = 0;
  Picos time_for(std::uint64_t bytes) const;  // throws kInvalidValue if the rate is unknown
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};

// One measured op. The time of an op of another size is interpolated between the samples of its kernel.
struct CostSample {
  std::string kernel;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0, bytes = 0;  // as in the op's Cost
  Picos time = 0;
  Picos beside = 0;  // the time while loads run concurrently; 0: not measured, Costs::kernel_slowdown applies
  friend bool operator==(const CostSample&, const CostSample&) = default;
};

struct Costs {
  std::string device = {};     // where they were measured
  LinkCost load = {};          // from host memory to the device; on cpu from the page cache
  LinkCost unload = {};        // from the device to host memory
  LinkCost read = {};          // from disk to host memory
  LinkCost decode = {};        // of compressed weights: decoded bytes per second, and the time of a launch
  double kernel_slowdown = 0;  // how much longer a kernel takes while a load runs: 0.07 is 7 %
  double load_slowdown = 0;    // how much longer a load takes while a kernel runs
  std::vector<CostSample> samples = {};

  // The time of an op: that of its own sample, if there is one. Otherwise it is interpolated between samples of the
  // same kernel and weight size. Otherwise it follows from its flops and bytes at the rates of the nearest sample of
  // its kernel. Throws kInvalidValue if its kernel has no sample.
  Picos time_of(const Graph& graph, const GraphOp& op) const;
  // How much longer all ops of a graph together take while loads run concurrently.
  double slowdown_of(const Graph& graph) const;
  friend bool operator==(const Costs&, const Costs&) = default;
};

// How the program loads weights, so that measure_costs measures the same transfers. `issue` enqueues one transfer to
// `to`, a range of device memory.
struct LoadProbe {
  std::function<void(StreamRef stream, Range to)> issue = {};  // empty: a copy from pinned memory
  std::uint64_t piece_bytes = std::uint64_t{16} << 20;         // the largest transfer
};

// Measures each different op of the graph and the links between host memory and the device. Also measures how much
// kernels and loads slow each other. Each result is the median of several measurements after a warm-up. Takes as much
// device memory as the largest op and one transfer. Costs::read stays unknown: measure the disk with measure_link.
// Costs::decode stays unknown: see measure_decode.
Costs measure_costs(const Graph& graph, const Device& device, const LoadProbe& load = {}, Here here = Here::at());
// Measures any link. `issue` issues a transfer of `bytes` bytes: at most `piece_bytes`, and a multiple of `unit_bytes`.
LinkCost measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                      std::uint64_t piece_bytes, std::uint64_t unit_bytes = 1, Here here = Here::at());
// Measures how fast the device decodes compressed weights, as weights of bf16 from a normal distribution.
LinkCost measure_decode(const Device& device, Here here = Here::at());
// Costs from the description of a sim device ("sim:h200"). Needs no hardware.
Costs model_costs(const Graph& graph, std::string_view device, Here here = Here::at());

// Costs as JSON files. Reading restores the written values bit for bit. Throws kIo, and kParse with the file and the
// position.
Costs read_costs(const std::string& path, Here here = Here::at());
void write_costs(const Costs& costs, const std::string& path, Here here = Here::at());

}  // namespace slip
