// A folder with a model as `slip model` writes it, opened.
#pragma once

#include <string>

#include "model/folder.hpp"

namespace slip::test {

struct ModelFolder {
  Graph graph;
  TensorFiles tensors;
};

inline ModelFolder open_model(const std::string& folder) {
  ModelFolder model{read_graph(folder + "/graph.json"), TensorFiles::open(folder)};
  model::require_weights(model.graph, model.tensors);
  return model;
}

}  // namespace slip::test
