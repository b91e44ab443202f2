// Opens a folder with a model that `slip model` has written.
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
