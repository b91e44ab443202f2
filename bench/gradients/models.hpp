// Networks as a training step sees them: their parameter tensors, layer by layer in the order of the forward pass, with
// the sizes that the architectures say, and how much each layer computes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "slip/gradient_plan.hpp"
#include "support/harness.hpp"

namespace slip::bench {

struct ModelLayer {
  std::vector<std::uint64_t> parameters;  // elements of each tensor
  double forward_flops = 0;               // of the whole batch
};

struct Model {
  std::string name;
  std::vector<ModelLayer> layers;
  double flops_per_second = 0;  // that a device reaches with it
  std::uint64_t elements() const;
  std::uint64_t tensors() const;
};

Model resnet50();     // 64 images of 224x224
Model vgg16();        // 64 images of 224x224
Model bert_large();   // 8 sequences of 512
Model gpt2_medium();  // 4 sequences of 1024
std::vector<Model> models();

// A step with f32 gradients. The backward pass of a layer takes twice its forward pass; its gradients are there at its
// end. Then, layer by layer, the optimizer (20 bytes of memory traffic for each parameter's byte of 4, at 1.5 TB/s) and
// the next forward pass.
GradientProfile step_of(const Model& model);
// The same with layers joined to at most so many of about the same work, each with one gradient.
GradientProfile coarse_step_of(const Model& model, std::size_t max_layers);

// The groups of bars of bench_gradients.
void add_sim_bars(Harness& harness);
void add_host_bars(Harness& harness);
void add_link_bars(Harness& harness);

// A rank of the bar over a slow link: this program, started again in a network namespace.
bool is_link_rank(int argc, char** argv);
int run_link_rank(int argc, char** argv);

}  // namespace slip::bench
