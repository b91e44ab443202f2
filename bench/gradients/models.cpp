#include "models.hpp"

#include <algorithm>
#include <stdexcept>

namespace slip::bench {
namespace {

constexpr double kOpNs = 10'000;               // minimum time of a layer: launches
constexpr double kOptimizerBytesPerNs = 1500;  // 1.5 TB/s
constexpr double kConvolutionFlops = 60e12, kTransformerFlops = 125e12;

// Square kernels; `size` is the side of its output, of 64 images.
ModelLayer convolution(std::uint64_t in, std::uint64_t out, std::uint64_t kernel, std::uint64_t size, bool bias) {
  ModelLayer layer;
  const std::uint64_t weights = in * out * kernel * kernel;
  layer.parameters.push_back(weights);
  if (bias) layer.parameters.push_back(out);
  layer.forward_flops = 2.0 * static_cast<double>(weights * size * size) * 64;
  return layer;
}

// Batch norm: a weight and a bias a channel.
ModelLayer norm(std::uint64_t channels) { return {{channels, channels}, 0}; }

ModelLayer linear(std::uint64_t in, std::uint64_t out, std::uint64_t rows) {
  return {{in * out, out}, 2.0 * static_cast<double>(in * out * rows)};
}

void check(const Model& model, std::uint64_t elements, std::uint64_t tensors) {
  if (model.elements() != elements || model.tensors() != tensors)
    throw std::logic_error(model.name + " has " + std::to_string(model.elements()) + " parameters in " +
                           std::to_string(model.tensors()) + " tensors, not those of the architecture");
}

}  // namespace

std::uint64_t Model::elements() const {
  std::uint64_t sum = 0;
  for (const ModelLayer& layer : layers) {
    for (const std::uint64_t one : layer.parameters) sum += one;
  }
  return sum;
}

std::uint64_t Model::tensors() const {
  std::uint64_t sum = 0;
  for (const ModelLayer& layer : layers) sum += layer.parameters.size();
  return sum;
}

Model resnet50() {
  Model model{"ResNet-50", {}, kConvolutionFlops};
  auto& layers = model.layers;
  const auto add = [&](std::uint64_t in, std::uint64_t out, std::uint64_t kernel, std::uint64_t size) {
    layers.push_back(convolution(in, out, kernel, size, false));
    layers.push_back(norm(out));
  };
  add(3, 64, 7, 112);
  std::uint64_t in = 64, size = 56, width = 64;
  for (const int blocks : {3, 4, 6, 3}) {
    for (int block = 0; block < blocks; ++block) {
      const std::uint64_t before = block == 0 && width > 64 ? size * 2 : size;  // the stride is in the 3x3
      add(in, width, 1, before);
      add(width, width, 3, size);
      add(width, width * 4, 1, size);
      if (block == 0) add(in, width * 4, 1, size);
      in = width * 4;
    }
    width *= 2;
    size /= 2;
  }
  layers.push_back(linear(2048, 1000, 64));
  check(model, 25'557'032, 161);
  return model;
}

Model vgg16() {
  Model model{"VGG-16", {}, kConvolutionFlops};
  std::uint64_t in = 3, size = 224;
  for (const std::vector<std::uint64_t>& block :
       {std::vector<std::uint64_t>{64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}}) {
    for (const std::uint64_t out : block) {
      model.layers.push_back(convolution(in, out, 3, size, true));
      in = out;
    }
    size /= 2;
  }
  model.layers.push_back(linear(25088, 4096, 64));
  model.layers.push_back(linear(4096, 4096, 64));
  model.layers.push_back(linear(4096, 1000, 64));
  check(model, 138'357'544, 32);
  return model;
}

Model bert_large() {
  constexpr std::uint64_t kHidden = 1024, kRows = 8 * 512, kLength = 512;
  Model model{"BERT-large", {}, kTransformerFlops};
  auto& layers = model.layers;
  layers.push_back({{30522 * kHidden}, 0});
  layers.push_back({{512 * kHidden}, 0});
  layers.push_back({{2 * kHidden}, 0});
  layers.push_back(norm(kHidden));
  for (int i = 0; i < 24; ++i) {
    for (int k = 0; k < 4; ++k) layers.push_back(linear(kHidden, kHidden, kRows));  // query, key, value, output
    layers.back().forward_flops += 4.0 * kRows * kLength * kHidden;                 // attention itself
    layers.push_back(norm(kHidden));
    layers.push_back(linear(kHidden, 4 * kHidden, kRows));
    layers.push_back(linear(4 * kHidden, kHidden, kRows));
    layers.push_back(norm(kHidden));
  }
  layers.push_back(linear(kHidden, kHidden, 8));  // pooler
  check(model, 335'141'888, 391);
  return model;
}

Model gpt2_medium() {
  constexpr std::uint64_t kHidden = 1024, kRows = 4 * 1024, kLength = 1024, kWords = 50257;
  Model model{"GPT-2-medium", {}, kTransformerFlops};
  auto& layers = model.layers;
  layers.push_back({{kWords * kHidden}, 0});  // its other use, as the head, is the last layer
  layers.push_back({{1024 * kHidden}, 0});
  for (int i = 0; i < 24; ++i) {
    layers.push_back(norm(kHidden));
    layers.push_back(linear(kHidden, 3 * kHidden, kRows));
    layers.push_back(linear(kHidden, kHidden, kRows));
    layers.back().forward_flops += 4.0 * kRows * kLength * kHidden;
    layers.push_back(norm(kHidden));
    layers.push_back(linear(kHidden, 4 * kHidden, kRows));
    layers.push_back(linear(4 * kHidden, kHidden, kRows));
  }
  layers.push_back(norm(kHidden));
  layers.push_back({{}, 2.0 * kHidden * kWords * kRows});
  check(model, 354'823'168, 292);
  return model;
}

std::vector<Model> models() { return {resnet50(), vgg16(), bert_large(), gpt2_medium()}; }

GradientProfile step_of(const Model& model) {
  const auto picos = [](double ns) { return static_cast<Picos>(ns * 1000); };
  const auto forward = [&](const ModelLayer& layer) {
    return kOpNs + layer.forward_flops / model.flops_per_second * 1e9;
  };
  GradientProfile profile;
  double now = 0;
  std::vector<std::size_t> layer_of;  // by gradient
  for (std::size_t i = model.layers.size(); i-- > 0;) {
    const ModelLayer& layer = model.layers[i];
    now += 2 * forward(layer);
    for (std::size_t k = layer.parameters.size(); k-- > 0;) {
      profile.gradients.push_back({layer.parameters[k] * 4, picos(now), 0, 0});
      layer_of.push_back(i);
    }
  }
  profile.backward_end = picos(now);
  std::vector<double> begins;
  for (const ModelLayer& layer : model.layers) {
    begins.push_back(now);
    double bytes = 0;
    for (const std::uint64_t elements : layer.parameters) bytes += 20.0 * static_cast<double>(elements);
    now += bytes / kOptimizerBytesPerNs + forward(layer);
  }
  for (std::size_t i = 0; i < layer_of.size(); ++i) profile.gradients[i].needed = picos(begins[layer_of[i]]);
  return profile;
}

GradientProfile coarse_step_of(const Model& model, std::size_t max_layers) {
  const GradientProfile whole = step_of(model);
  GradientProfile coarse;
  coarse.backward_end = whole.backward_end;
  for (const GradientProfile::Gradient& gradient : whole.gradients) {
    const auto place =
        static_cast<std::size_t>(static_cast<double>(gradient.arrival - 1) / static_cast<double>(whole.backward_end) *
                                 static_cast<double>(max_layers));
    if (coarse.gradients.empty() || coarse.gradients.size() <= place)
      coarse.gradients.push_back({0, 0, gradient.needed, 0});
    GradientProfile::Gradient& joined = coarse.gradients.back();
    joined.bytes += gradient.bytes;
    joined.arrival = gradient.arrival;
    joined.needed = std::min(joined.needed, gradient.needed);
  }
  return coarse;
}

}  // namespace slip::bench
