// The kernels of a Graph's built-in ops, and the scalars that each is launched with.
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

}  // namespace slip

// The built-in ops on the cpu. Each op spreads its work over all cores (base/team.hpp); its bits do not depend on their
// number.
namespace slip::cpu {

void linear(const Args& args);
void bias(const Args& args);
void add(const Args& args);
void multiply(const Args& args);
void relu(const Args& args);
void gelu(const Args& args);
void silu(const Args& args);
void rms_norm(const Args& args);
void layer_norm(const Args& args);

}  // namespace slip::cpu

// The built-in ops on a GPU: null functions in a build without CUDA.
namespace slip::cuda {

#if SLIP_HAS_CUDA

void linear(const Args& args, CUstream_st* stream);
void bias(const Args& args, CUstream_st* stream);
void add(const Args& args, CUstream_st* stream);
void multiply(const Args& args, CUstream_st* stream);
void relu(const Args& args, CUstream_st* stream);
void gelu(const Args& args, CUstream_st* stream);
void silu(const Args& args, CUstream_st* stream);
void rms_norm(const Args& args, CUstream_st* stream);
void layer_norm(const Args& args, CUstream_st* stream);

#else

inline constexpr void (*linear)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*bias)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*add)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*multiply)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*relu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*gelu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*silu)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*rms_norm)(const Args&, CUstream_st*) = nullptr;
inline constexpr void (*layer_norm)(const Args&, CUstream_st*) = nullptr;

#endif

}  // namespace slip::cuda
