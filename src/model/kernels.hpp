// The kernels of a Graph's built-in ops, and the scalars that each is launched with.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "slip/kernel.hpp"
#include "slip/tensors.hpp"

namespace slip::model {

enum class BuiltIn : std::uint8_t { kLinear, kBias, kAdd, kMultiply, kRelu, kGelu, kSilu, kRmsNorm, kLayerNorm };
inline constexpr std::size_t kBuiltIns = 9;

std::optional<BuiltIn> built_in_of(std::string_view name);
const Kernel& kernel_of(BuiltIn op);                       // its name is as in graph files: "rms_norm"
std::optional<BuiltIn> built_in_of(const Kernel* kernel);  // nullopt if the kernel is not a built-in one

// Parts of a linear have a multiple of this many rows. The tile of every kernel divides it, so that no result depends
// on where a part begins.
inline constexpr std::size_t kPartRows = 128;

// linear: in(0) is x [tokens, in], and in(1) are rows [first, first + rows) of the weight [out, in]. out(0) is y
// [tokens, out]. The kernel writes its columns [first, first + rows).
struct LinearSizes {
  DataType type = DataType::kF32;
  std::size_t tokens = 0, in = 0, out = 0, first = 0, rows = 0;

  std::vector<Scalar> scalars() const { return {static_cast<int>(type), tokens, in, out, first, rows}; }
  static LinearSizes of(const Args& args) {
    return {static_cast<DataType>(args.scalar<int>(0)),
            args.scalar<std::size_t>(1),
            args.scalar<std::size_t>(2),
            args.scalar<std::size_t>(3),
            args.scalar<std::size_t>(4),
            args.scalar<std::size_t>(5)};
  }
};

// All other ops: in(0) and out(0) are [rows, columns], and in(1) of add and multiply, too. in(1) of bias and of the
// norms (the weight) is [columns], and so is in(2) of layer_norm (the bias).
struct RowSizes {
  DataType type = DataType::kF32;
  std::size_t rows = 0, columns = 0;
  double epsilon = 0;  // norms only

  std::vector<Scalar> scalars() const { return {static_cast<int>(type), rows, columns, epsilon}; }
  static RowSizes of(const Args& args) {
    return {static_cast<DataType>(args.scalar<int>(0)), args.scalar<std::size_t>(1), args.scalar<std::size_t>(2),
            args.scalar<double>(3)};
  }
};

}  // namespace slip::model

// The built-in ops on the cpu. Each op spreads its work over all cores (base/team.hpp); its bits do not depend on their
// number.
namespace slip::model::cpu {

using Function = void(const Args& args);
Function linear, bias, add, multiply, relu, gelu, silu, rms_norm, layer_norm;

}  // namespace slip::model::cpu

// The built-in ops on a GPU: null functions in a build without CUDA.
namespace slip::model::cuda {

using Function = void(const Args& args, CUstream_st* stream);
#if SLIP_HAS_CUDA
Function linear, bias, add, multiply, relu, gelu, silu, rms_norm, layer_norm;
#else
inline constexpr Function *linear = nullptr, *bias = nullptr, *add = nullptr, *multiply = nullptr, *relu = nullptr,
                          *gelu = nullptr, *silu = nullptr, *rms_norm = nullptr, *layer_norm = nullptr;
#endif

}  // namespace slip::model::cuda
