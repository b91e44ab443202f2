#include "model/kernels.hpp"

#include <array>

namespace slip {
namespace {

constexpr std::array<const char*, kBuiltIns> kNames = {"linear", "bias", "add",      "multiply",  "relu",
                                                       "gelu",   "silu", "rms_norm", "layer_norm"};

const std::array<Kernel, kBuiltIns>& kernels() {
  static const std::array<Kernel, kBuiltIns> kAll = {{{kNames[0], cpu::linear, cuda::linear},
                                                      {kNames[1], cpu::bias, cuda::bias},
                                                      {kNames[2], cpu::add, cuda::add},
                                                      {kNames[3], cpu::multiply, cuda::multiply},
                                                      {kNames[4], cpu::relu, cuda::relu},
                                                      {kNames[5], cpu::gelu, cuda::gelu},
                                                      {kNames[6], cpu::silu, cuda::silu},
                                                      {kNames[7], cpu::rms_norm, cuda::rms_norm},
                                                      {kNames[8], cpu::layer_norm, cuda::layer_norm}}};
  return kAll;
}

}  // namespace

const char* built_in_name(BuiltIn op) { return kNames[static_cast<std::size_t>(op)]; }

std::optional<BuiltIn> built_in_of(std::string_view name) {
  for (std::size_t i = 0; i < kBuiltIns; ++i) {
    if (name == kNames[i]) return static_cast<BuiltIn>(i);
  }
  return std::nullopt;
}

const Kernel& kernel_of(BuiltIn op) { return kernels()[static_cast<std::size_t>(op)]; }

std::optional<BuiltIn> built_in_of(const Kernel* kernel) {
  for (std::size_t i = 0; i < kBuiltIns; ++i) {
    if (kernel == &kernels()[i]) return static_cast<BuiltIn>(i);
  }
  return std::nullopt;
}

}  // namespace slip
