// Costs: how long the ops of a graph and the transfers of a device take. They are measured on the device, or modelled
// from its description. Planners and predictions use them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip {

// Time of a transfer over a link: a latency per transfer, plus bytes / rate. A rate of 0 means unknown.
struct LinkCost {
  double bytes_per_second = 0;
  Picos latency = 0;
  Picos time_for(std::uint64_t bytes) const;  // throws kInvalidValue if the rate is unknown
  friend bool operator==(const LinkCost&, const LinkCost&) = default;
};
using Link [[deprecated("use LinkCost")]] = LinkCost;

// One measured op. The time of an op of another size is interpolated linearly between samples.
struct CostSample {
  std::string kernel;
  std::uint64_t weight_bytes = 0;
  std::uint64_t flops = 0, bytes = 0;  // as declared in the op's Cost
  Picos time = 0;
  Picos beside = 0;  // the time while loads run concurrently; 0: time * (1 + Costs::kernel_slowdown)
  friend bool operator==(const CostSample&, const CostSample&) = default;
};

struct Costs {
  std::string device = {};     // DeviceInfo::name of the measured device
  LinkCost load = {};          // host memory to device; on cpu from the page cache
  LinkCost unload = {};        // device to host memory
  LinkCost read = {};          // disk to host memory
  double kernel_slowdown = 0;  // how much longer a kernel takes while a load runs: 0.07 is 7 %
  double load_slowdown = 0;    // how much longer a load takes while a kernel runs
  std::vector<CostSample> samples = {};

  // The op's sample, or an interpolation between samples of the same kernel and weight. Without such samples: the op's
  // flops and bytes at the rates of the kernel's nearest sample. Throws kInvalidValue if the kernel has no sample.
  Picos time_of(const Graph& graph, const GraphOp& op) const;
  // How much longer all ops of the graph together take while loads run.
  double slowdown_of(const Graph& graph) const;
  friend bool operator==(const Costs&, const Costs&) = default;
};

// How the program loads weights, so that it can be measured: `issue` enqueues one transfer into device memory `to`.
struct LoadProbe {
  std::function<void(StreamRef stream, Range to)> issue = {};  // empty: a copy from pinned memory
  std::uint64_t piece_bytes = std::uint64_t{16} << 20;         // maximum size of one transfer
};

// Measures on the device: each distinct op of the graph, the links between host and device memory, and how much kernels
// and loads slow each other down. Each value is the median of several runs after a warm-up. Needs device memory for the
// largest op and one transfer. It does not measure `read`: use measure_link() with the disk in question.
Costs measure_costs(const Graph& graph, const Device& device, const LoadProbe& load = {}, Here here = Here::at());
// Measures any link: `issue` enqueues a transfer of `bytes`, a multiple of `unit_bytes` and at most `piece_bytes`.
LinkCost measure_link(const Device& device, const std::function<void(StreamRef, std::uint64_t bytes)>& issue,
                      std::uint64_t piece_bytes, std::uint64_t unit_bytes = 1, Here here = Here::at());
// Derives costs from the description of a sim device ("sim:h200"). No device is needed.
Costs model_costs(const Graph& graph, std::string_view device, Here here = Here::at());

// JSON; a file that was written is read back bit for bit. Throws kIo, and kParse with the file and position.
Costs read_costs(const std::string& path, Here here = Here::at());
void write_costs(const Costs& costs, const std::string& path, Here here = Here::at());

}  // namespace slip
