// A model as a folder: graph.json, and the weights by the names of their values in safetensors files.
#pragma once

#include <string>

#include "slip/graph.hpp"
#include "slip/tensors.hpp"

namespace slip {

struct Model {
  Graph graph;
  TensorFiles tensors;
};

// Every weight of the graph is there with its type and shape, or kInvalidValue says which is not.
void require_weights(const Graph& graph, const TensorFiles& tensors, Here here = Here::at());
Model open_model(const std::string& folder, Here here = Here::at());

// The bytes of a weight from `offset` on.
using FillWeight = std::function<void(Value weight, std::uint64_t offset, std::span<std::byte> into)>;

// Writes the folder, piece by piece, the graph last; several shards get an index. A folder that holds a model already
// is left alone: kInvalidValue.
void write_model(const Graph& graph, const std::string& folder, const FillWeight& fill, std::size_t shards = 1,
                 Here here = Here::at());

}  // namespace slip
