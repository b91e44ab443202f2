#include "model/kernels.hpp"

#include <algorithm>
#include <array>

namespace slip::model {
namespace {

const std::array<Kernel, kBuiltIns>& kernels() {
  static const std::array<Kernel, kBuiltIns> kAll = {{{"linear", cpu::linear, cuda::linear},
                                                      {"bias", cpu::bias, cuda::bias},
                                                      {"add", cpu::add, cuda::add},
                                                      {"multiply", cpu::multiply, cuda::multiply},
                                                      {"relu", cpu::relu, cuda::relu},
                                                      {"gelu", cpu::gelu, cuda::gelu},
                                                      {"silu", cpu::silu, cuda::silu},
                                                      {"rms_norm", cpu::rms_norm, cuda::rms_norm},
                                                      {"layer_norm", cpu::layer_norm, cuda::layer_norm}}};
  return kAll;
}

template <class Predicate>
std::optional<BuiltIn> find(const Predicate& is_wanted) {
  const auto found = std::ranges::find_if(kernels(), is_wanted);
  if (found == kernels().end()) return std::nullopt;
  return static_cast<BuiltIn>(found - kernels().begin());
}

}  // namespace

std::optional<BuiltIn> built_in_of(std::string_view name) {
  return find([&](const Kernel& kernel) { return kernel.name.text() == name; });
}

std::optional<BuiltIn> built_in_of(const Kernel* kernel) {
  return find([&](const Kernel& one) { return &one == kernel; });
}

const Kernel& kernel_of(BuiltIn op) { return kernels()[static_cast<std::size_t>(op)]; }

}  // namespace slip::model
