// The built-in ops of a Graph: their kernels, and what each is launched with.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "slip/kernel.hpp"
#include "slip/tensors.hpp"

namespace slip {

enum class BuiltIn : std::uint8_t { kLinear, kBias, kAdd, kMultiply, kRelu, kGelu, kSilu, kRmsNorm, kLayerNorm };
inline constexpr std::size_t kBuiltIns = 9;

const char* built_in_name(BuiltIn op);  // as in graph files: "rms_norm"
std::optional<BuiltIn> built_in_of(std::string_view name);
const Kernel& kernel_of(BuiltIn op);
std::optional<BuiltIn> built_in_of(const Kernel* kernel);  // nothing: a kernel of somebody else

// Parts of a linear have a multiple of so many rows. A tile of every kernel must divide it, so that no result depends
// on where a part begins.
inline constexpr std::size_t kPartRows = 128;

// linear: in(0) x [tokens, in], in(1) rows [first, first + rows) of the weight [out, in]; out(0) y [tokens, out], of
// which these columns are written.
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

// All others: in(0) and out(0) are [rows, columns]. add, multiply: in(1) too. bias: in(1) [columns]; norms: in(1)
// weight and, of layer_norm, in(2) bias [columns].
struct RowSizes {
  DataType type = DataType::kF32;
  std::size_t rows = 0, columns = 0;
  double epsilon = 0;  // norms

  std::vector<Scalar> scalars() const { return {static_cast<int>(type), rows, columns, epsilon}; }
  static RowSizes of(const Args& args) {
    return {static_cast<DataType>(args.scalar<int>(0)), args.scalar<std::size_t>(1), args.scalar<std::size_t>(2),
            args.scalar<double>(3)};
  }
};

}  // namespace slip
