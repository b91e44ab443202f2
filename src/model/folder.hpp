// A model as a folder: graph.json, and safetensors files with the weights under the names of their values.
#pragma once

#include <string>

#include "slip/graph.hpp"
#include "slip/tensors.hpp"

namespace slip::model {

struct Model {
  Graph graph;
  TensorFiles tensors;
};

// Throws kInvalidValue unless `tensors` has every weight of the graph with its type and shape.
void require_weights(const Graph& graph, const TensorFiles& tensors, Here here = Here::at());
Model open_model(const std::string& folder, Here here = Here::at());

// Writes the bytes of a weight from `offset` on.
using FillWeight = std::function<void(Value weight, std::uint64_t offset, std::span<std::byte> into)>;

// Writes the folder, the graph last; several shards get an index. Throws kInvalidValue if the folder has a model
// already.
void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards = 1,
                 Here here = Here::at());

}  // namespace slip::model
