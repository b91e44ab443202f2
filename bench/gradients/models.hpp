// Networks for bench_gradients: their parameter tensors, layer by layer in the order of the forward pass, with the
// sizes of the real architectures and the flops of each layer. Also the groups of bars.
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

// A step with f32 gradients. The backward pass of a layer takes twice as long as its forward pass; its gradients arrive
// at its end. Then come, layer by layer, the optimizer (20 bytes of memory traffic per parameter, at 1.5 TB/s) and the
// next forward pass.
GradientProfile step_of(const Model& model);
// The same with layers joined to at most `max_layers` layers of about the same work, each with one gradient.
GradientProfile coarse_step_of(const Model& model, std::size_t max_layers);

// The groups of bars of bench_gradients.
void add_sim_bars(Harness& harness);
void add_host_bars(Harness& harness);
void add_link_bars(Harness& harness);
void add_gpu_bars(Harness& harness);

// A rank of the bar over a slow link: this program, started again in a network namespace.
bool is_link_rank(int argc, char** argv);
int run_link_rank(int argc, char** argv);

}  // namespace slip::bench
