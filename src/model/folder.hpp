// A model as a folder: graph.json, and safetensors files with the weights under the names of their values.
//
// The graph is JSON:
//
//   {"format": "slip graph", "version": 1, "part_bytes": 33554432, "join_bytes": 1048576,
//    "values": [{"name": "x", "role": "input", "type": "F32", "shape": [64, 1024]}, ...],   inputs, weights and states
//    "ops": [{"op": "linear", "name": "up", "reads": ["x", "w"]},                           in the order they run; each
//            {"op": "rms_norm", "name": "n", "reads": ["up", "s"], "epsilon": 1e-05}, ...], makes a value of its name
//    "outputs": ["n"]}
#pragma once

#include <string>
#include <string_view>

#include "slip/graph.hpp"
#include "slip/tensors.hpp"

namespace slip::model {

// Throws kInvalidValue if the graph has an op that is not built in.
std::string graph_text(const Graph& graph, Here here);
// `name` is the file's, for errors. All errors are kParse, with the name and the path of the key.
Graph parse_graph(std::string_view text, const std::string& name, Here here);

// Throws kInvalidValue unless `tensors` has every weight of the graph with its type and shape.
void require_weights(const Graph& graph, const TensorFiles& tensors, Here here = Here::at());

// Writes the bytes of a weight from `offset` on.
using FillWeight = std::function<void(Value weight, std::uint64_t offset, std::span<std::byte> into)>;

// Writes the folder, the graph last; several shards get an index. Throws kInvalidValue if the folder has a model
// already.
void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards = 1,
                 Here here = Here::at());

}  // namespace slip::model
