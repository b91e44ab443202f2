// Runs a graph on a device with everything resident, for the tests of ops.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "slip/device.hpp"
#include "slip/graph.hpp"

namespace slip::model_test {

using Bytes = std::vector<std::byte>;

// Values as doubles from and to the bytes of F32 or BF16.
Bytes stored(DataType type, const std::vector<double>& values);
std::vector<double> loaded(DataType type, const Bytes& bytes);

// Ops in order on one stream. `given`: bytes of each input and weight by name. Returns the bytes of each output.
std::map<std::string, Bytes> run_graph(const Graph& graph, const Device& device,
                                       const std::map<std::string, Bytes>& given);

}  // namespace slip::model_test
