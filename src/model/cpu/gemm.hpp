// A matrix product on the calling thread by OpenBLAS, if the build has found it.
#pragma once

#include <cstddef>

namespace slip::model::cpu {

#if SLIP_HAS_OPENBLAS
inline constexpr bool kHasBlas = true;
#else
inline constexpr bool kHasBlas = false;
#endif

struct GemmSizes {
  std::size_t tokens = 0, rows = 0, in = 0;
};

// Rows of a matrix, `stride` elements apart.
template <class T>
struct Rows {
  T* data = nullptr;
  std::size_t stride = 0;
};

enum class Sum { kSet, kAdd };  // y = x * w^T, or y += x * w^T

// x [tokens, in], w [rows, in], y [tokens, rows]. REQUIRES: kHasBlas.
void gemm(const GemmSizes& sizes, Rows<const float> x, Rows<const float> w, Rows<float> y, Sum sum);

}  // namespace slip::model::cpu
